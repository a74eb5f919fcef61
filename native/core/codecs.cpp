#include "core/codecs.hpp"

#include <dlfcn.h>

#include <initializer_list>
#include <string>

namespace penstock {

namespace {

struct Names {
    const char* library;
    const char* debian;
    const char* fedora;
    const char* homebrew;
};

// The names for dlopen, which doesn't search Homebrew's folders.
#ifdef __APPLE__
constexpr auto zlib_files = {"libz.1.dylib", "/usr/lib/libz.1.dylib"};
constexpr auto zstd_files = {"libzstd.1.dylib", "/opt/homebrew/lib/libzstd.1.dylib", "/usr/local/lib/libzstd.1.dylib"};
constexpr auto xxhash_files = {"libxxhash.0.dylib", "/opt/homebrew/lib/libxxhash.0.dylib",
                               "/usr/local/lib/libxxhash.0.dylib"};
#else
constexpr auto zlib_files = {"libz.so.1"};
constexpr auto zstd_files = {"libzstd.so.1"};
constexpr auto xxhash_files = {"libxxhash.so.0"};
#endif

class Library {
  public:
    Library(const Names& names, std::initializer_list<const char*> files) : names_(names) {
        for (const char* file : files) {
            if (handle_ == nullptr) handle_ = ::dlopen(file, RTLD_NOW | RTLD_LOCAL);
        }
        if (handle_ == nullptr) fail(std::string("found no ") + *files.begin());
    }

    template <class Function>
    void find(Function*& function, const char* symbol) const {
        function = reinterpret_cast<Function*>(::dlsym(handle_, symbol));
        if (function == nullptr) fail(std::string("found one that is too old and has no ") + symbol);
    }

  private:
    [[noreturn]] void fail(const std::string& found) const {
        throw LibraryMissing(std::string("the system's ") + names_.library + " is required for this; " + found +
                             ". Install it: apt install " + names_.debian + ", dnf install " + names_.fedora +
                             ", or brew install " + names_.homebrew);
    }

    Names names_;
    void* handle_ = nullptr;  // never closed: jobs may run to the end of the process
};

}  // namespace

const Zlib& zlib() {
    static const Zlib functions = [] {
        const Library library({"zlib", "zlib1g", "zlib", "zlib"}, zlib_files);
        Zlib found{};
        library.find(found.start, "inflateInit2_");
        library.find(found.inflate, "inflate");
        library.find(found.restart, "inflateReset");
        library.find(found.end, "inflateEnd");
        return found;
    }();
    return functions;
}

const Zstd& zstd() {
    static const Zstd functions = [] {
        const Library library({"zstd", "libzstd1", "libzstd", "zstd"}, zstd_files);
        Zstd found{};
        library.find(found.make_context, "ZSTD_createDCtx");
        library.find(found.drop_context, "ZSTD_freeDCtx");
        library.find(found.decompress, "ZSTD_decompressStream");
        library.find(found.content_size, "ZSTD_getFrameContentSize");
        library.find(found.is_error, "ZSTD_isError");
        library.find(found.error_name, "ZSTD_getErrorName");
        return found;
    }();
    return functions;
}

const Xxhash& xxhash() {
    static const Xxhash functions = [] {
        const Library library({"xxHash", "libxxhash0", "xxhash-libs", "xxhash"}, xxhash_files);
        Xxhash found{};
        library.find(found.xxh3_64, "XXH3_64bits_withSeed");
        return found;
    }();
    return functions;
}

}  // namespace penstock
