#include "core/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace penstock {

namespace {

constexpr std::byte kNothing{};  // the data of an empty file, since an empty mapping is not possible

[[noreturn]] void fail(int error) { throw std::system_error(error, std::generic_category()); }

// Closes the descriptor at the end of the scope; the mapping outlives it.
class Descriptor {
  public:
    explicit Descriptor(const std::string& path) : number_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
        if (number_ < 0) {
            fail(errno);
        }
    }
    ~Descriptor() { ::close(number_); }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    int number() const noexcept { return number_; }

  private:
    int number_;
};

}  // namespace

MappedFile::MappedFile(const std::string& path) : data_(&kNothing) {
    const Descriptor descriptor(path);
    struct stat status{};
    if (::fstat(descriptor.number(), &status) != 0) {
        fail(errno);
    }
    if (!S_ISREG(status.st_mode)) {
        fail(S_ISDIR(status.st_mode) ? EISDIR : ENODEV);
    }
    size_ = static_cast<std::size_t>(status.st_size);
    if (size_ == 0) {
        return;
    }
    void* begin = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, descriptor.number(), 0);
    if (begin == MAP_FAILED) {
        fail(errno);
    }
    data_ = static_cast<const std::byte*>(begin);
}

MappedFile::~MappedFile() {
    if (size_ != 0) {
        // munmap takes a pointer to non-const; nothing is written through it.
        ::munmap(const_cast<std::byte*>(data_), size_);
    }
}

}  // namespace penstock
