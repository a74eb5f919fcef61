// A whole file mapped into memory for reading, without keeping a descriptor of it.
//
// Python's `mmap` keeps one descriptor for each mapping (before 3.13 always), so that a dataset of a few thousand files
// exceeds the limit of open files.
#pragma once

#include <cstddef>
#include <string>

namespace penstock {

class MappedFile {
  public:
    // Throws std::system_error, whose code is the errno, if the file can't be opened or mapped.
    explicit MappedFile(const std::string& path);
    ~MappedFile();
    MappedFile(const MappedFile&) = delete;
    MappedFile& operator=(const MappedFile&) = delete;

    const std::byte* data() const noexcept { return data_; }  // never null, also if the file is empty
    std::size_t size() const noexcept { return size_; }

  private:
    const std::byte* data_;
    std::size_t size_ = 0;
};

}  // namespace penstock
