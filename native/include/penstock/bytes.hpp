// Bytes: a handle over memory of any owner; passed by value, shared, never copied.
//
// For extensions: C++17, only this header, nothing to link. `penstock/bytes_python.hpp` converts handles to Python and
// back. `penstock.transport.include_directory()` returns the folder of the headers.
//
//     penstock::Bytes bytes(std::move(text));    // a std::string: moved in
//     penstock::Bytes head = bytes.slice(0, 16);  // the same memory, the same owner
//     parse(head.view());                         // as a std::string_view
//
// Guarantees:
//   - Copying, slicing and dropping a handle copy no bytes and allocate nothing. The owner is dropped with the last
//     handle, once, on the thread that drops it.
//   - Different threads may use different handles over one owner. One handle, like a std::shared_ptr, may not be
//     assigned to while another thread uses it. The bytes are not locked.
//   - `data()` is never null, and the start of the bytes does not change while a handle exists.
//
// A handle is a plain C struct with the functions of its owner. So modules that were built by different compilers, or
// against different versions of this header, can exchange handles; no type of std:: crosses between them.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

extern "C" {

// The struct that modules exchange, in a PyCapsule of the name below. Neither function throws, and a caller needs no
// GIL. Fields are never moved; a later version of the struct has another name.
struct penstock_bytes_v1 {
    std::uint32_t version;   // 1
    std::uint32_t readonly;  // 1: the bytes may not be written through this handle; 0: they may
    void* data;              // never null, even if there are no bytes
    std::size_t size;        // in bytes
    void* owner;             // null: the bytes live as long as the process
    void (*retain)(void* owner);
    void (*release)(void* owner);  // the last call drops the owner
};
}

namespace penstock {

inline constexpr char bytes_capsule_name[] = "penstock.bytes.v1";

namespace detail {

inline std::atomic<std::size_t> num_living_owners{0};

inline char no_bytes[1] = {0};

// The owner of bytes, with the number of handles that share it.
template <class Held>
class Owner {
  public:
    template <class... Arguments>
    explicit Owner(Arguments&&... arguments) : held_(std::forward<Arguments>(arguments)...) {
        num_living_owners.fetch_add(1);
    }
    Owner(const Owner&) = delete;
    Owner& operator=(const Owner&) = delete;

    Held& held() noexcept { return held_; }

    static void retain(void* owner) { static_cast<Owner*>(owner)->count_.fetch_add(1, std::memory_order_relaxed); }
    static void release(void* owner) {
        // Publish this thread's accesses to the bytes, and see those of all others, before the owner is dropped.
        if (static_cast<Owner*>(owner)->count_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
            delete static_cast<Owner*>(owner);
        }
    }

  private:
    ~Owner() { num_living_owners.fetch_sub(1); }

    Held held_;
    std::atomic<std::size_t> count_{1};
};

}  // namespace detail

// The number of owners that this module has created and not dropped; for tests of lifetimes.
inline std::size_t living_owners() noexcept { return detail::num_living_owners.load(); }

class Bytes {
  public:
    static constexpr std::size_t npos = static_cast<std::size_t>(-1);

    // No bytes.
    Bytes() noexcept : Bytes(penstock_bytes_v1{1, 1, detail::no_bytes, 0, nullptr, nullptr, nullptr}) {}

    // Moved in, read-only from now on.
    Bytes(std::string&& bytes) : Bytes(keep(std::move(bytes))) {}
    Bytes(std::vector<char>&& bytes) : Bytes(keep(std::move(bytes))) {}
    Bytes(std::vector<std::byte>&& bytes) : Bytes(keep(std::move(bytes))) {}
    Bytes(std::vector<std::uint8_t>&& bytes) : Bytes(keep(std::move(bytes))) {}

    // Read-only bytes that stay in place as long as `owner` exists.
    Bytes(const void* data, std::size_t size, std::shared_ptr<const void> owner)
        : Bytes(over(const_cast<void*>(data), size, true, std::move(owner))) {}

    // The same, for bytes that may be written through the handle.
    static Bytes writable(void* data, std::size_t size, std::shared_ptr<const void> owner) {
        return Bytes(over(data, size, false, std::move(owner)));
    }

    // Shares the bytes of another module's struct. Throws std::invalid_argument if it has another version.
    static Bytes share(const penstock_bytes_v1& handle) {
        if (handle.version != 1) {
            throw std::invalid_argument("penstock::Bytes::share: the struct must be of version 1");
        }
        Bytes shared(handle);
        shared.retain();
        return shared;
    }

    Bytes(const Bytes& other) noexcept : handle_(other.handle_) { retain(); }
    Bytes(Bytes&& other) noexcept : Bytes() { swap(other); }
    Bytes& operator=(Bytes other) noexcept {
        swap(other);
        return *this;
    }
    ~Bytes() {
        if (handle_.owner != nullptr) handle_.release(handle_.owner);
    }

    void swap(Bytes& other) noexcept { std::swap(handle_, other.handle_); }
    friend void swap(Bytes& first, Bytes& second) noexcept { first.swap(second); }

    const std::byte* data() const noexcept { return static_cast<const std::byte*>(handle_.data); }
    std::size_t size() const noexcept { return handle_.size; }
    bool empty() const noexcept { return handle_.size == 0; }
    bool readonly() const noexcept { return handle_.readonly != 0; }
    const std::byte* begin() const noexcept { return data(); }
    const std::byte* end() const noexcept { return data() + size(); }
    std::byte operator[](std::size_t position) const noexcept { return data()[position]; }
    std::string_view view() const noexcept { return {static_cast<const char*>(handle_.data), handle_.size}; }

    // The writable start. Throws std::logic_error if the bytes are read-only.
    std::byte* mutable_data() const {
        if (readonly()) throw std::logic_error("penstock::Bytes::mutable_data: the bytes are read-only");
        return static_cast<std::byte*>(handle_.data);
    }

    // `count` bytes from `start`, or the rest, of the same owner. Throws std::out_of_range if `start` is past the
    // end.
    Bytes slice(std::size_t start, std::size_t count = npos) const {
        if (start > size()) throw std::out_of_range("penstock::Bytes::slice: start must not be past the end");
        Bytes part(*this);
        part.handle_.data = static_cast<std::byte*>(handle_.data) + start;
        part.handle_.size = std::min(count, size() - start);
        return part;
    }

    // The same bytes through a read-only handle.
    Bytes as_readonly() const noexcept {
        Bytes same(*this);
        same.handle_.readonly = 1;
        return same;
    }

    // The struct for another module, which must retain the owner before this handle is dropped (see `share`).
    const penstock_bytes_v1& handle() const noexcept { return handle_; }

    friend bool operator==(const Bytes& first, const Bytes& second) noexcept { return first.view() == second.view(); }
    friend bool operator!=(const Bytes& first, const Bytes& second) noexcept { return first.view() != second.view(); }

  private:
    explicit Bytes(const penstock_bytes_v1& handle) noexcept : handle_(handle) {}

    void retain() const noexcept {
        if (handle_.owner != nullptr) handle_.retain(handle_.owner);
    }

    template <class Container>
    static penstock_bytes_v1 keep(Container&& bytes) {
        using Holder = detail::Owner<std::decay_t<Container>>;
        auto* owner = new Holder(std::forward<Container>(bytes));
        auto& held = owner->held();  // a short string holds its characters itself: only now is their address final
        return {1,
                1,
                held.empty() ? detail::no_bytes : static_cast<void*>(held.data()),
                held.size(),
                owner,
                &Holder::retain,
                &Holder::release};
    }

    static penstock_bytes_v1 over(void* data, std::size_t size, bool readonly, std::shared_ptr<const void>&& owner) {
        using Holder = detail::Owner<std::shared_ptr<const void>>;
        if (data == nullptr && size != 0) throw std::invalid_argument("penstock::Bytes: data must not be null");
        return {1,
                readonly ? 1u : 0u,
                data == nullptr ? detail::no_bytes : data,
                size,
                new Holder(std::move(owner)),
                &Holder::retain,
                &Holder::release};
    }

    penstock_bytes_v1 handle_;
};

}  // namespace penstock
