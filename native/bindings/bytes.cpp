// Binds handles over bytes as a base class with the buffer protocol (`penstock.transport.Bytes` adds the methods of
// bytes), the checksum of bytes, and their decompression.
#include "include/penstock/bytes.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "bindings/interpreter_lock.hpp"
#include "core/codecs.hpp"
#include "core/crc32.hpp"
#include "core/decompress.hpp"
#include "include/penstock/bytes_python.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace penstock::bindings {

namespace {

// Converts PythonErrorSet to nanobind's exception for the error that is set.
template <class Function>
auto translated(Function function) {
    try {
        return function();
    } catch (const PythonErrorSet&) {
        throw nb::python_error();
    }
}

int get_buffer(PyObject* object, Py_buffer* view, int flags) {
    if (!nb::inst_ready(object)) {
        view->obj = nullptr;
        PyErr_SetString(PyExc_BufferError, "the handle was never initialised");
        return -1;
    }
    const penstock_bytes_v1& handle = nb::inst_ptr<Bytes>(object)->handle();
    return PyBuffer_FillInfo(view, object, handle.data, static_cast<Py_ssize_t>(handle.size),
                             static_cast<int>(handle.readonly), flags);
}

PyType_Slot buffer_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(&get_buffer)}, {0, nullptr}};

// The argument of a search or a comparison: bytes that are only read during the call.
class Operand {
  public:
    explicit Operand(nb::handle object) {
        if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) throw nb::python_error();
    }
    Operand(const Operand&) = delete;
    Operand& operator=(const Operand&) = delete;
    ~Operand() { PyBuffer_Release(&view_); }

    std::string_view view() const { return {static_cast<const char*>(view_.buf), static_cast<std::size_t>(view_.len)}; }

  private:
    Py_buffer view_{};
};

// Positions in the whole; 0 <= `start` <= `stop` <= size.
std::int64_t find(const Bytes& bytes, nb::handle needle, std::size_t start, std::size_t stop) {
    const auto found = bytes.view().substr(0, stop).find(Operand(needle).view(), start);
    return found == std::string_view::npos ? -1 : static_cast<std::int64_t>(found);
}

std::int64_t rfind(const Bytes& bytes, nb::handle needle, std::size_t start, std::size_t stop) {
    const auto found = bytes.view().substr(start, stop - start).rfind(Operand(needle).view());
    return found == std::string_view::npos ? -1 : static_cast<std::int64_t>(found + start);
}

std::size_t count(const Bytes& bytes, nb::handle needle, std::size_t start, std::size_t stop) {
    const Operand operand(needle);
    const std::string_view wanted = operand.view(), whole = bytes.view().substr(0, stop);
    if (wanted.empty()) return stop - start + 1;
    std::size_t total = 0;
    while ((start = whole.find(wanted, start)) != std::string_view::npos) {
        start += wanted.size();  // occurrences don't overlap
        total += 1;
    }
    return total;
}

// For smaller sources, releasing the GIL costs more than it gains.
constexpr std::size_t released_bytes = 1 << 16;

std::uint32_t checksum(nb::handle source) {
    const Operand operand(source);
    const std::string_view whole = operand.view();
    const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(whole.data()), whole.size());
    if (bytes.size() < released_bytes) return crc32c(bytes);
    const WithoutLock released;
    return crc32c(bytes);
}

nb::bytes decompressed(nb::handle source, const std::string& codec, std::uint64_t max_size) {
    const Operand operand(source);
    const std::string_view whole = operand.view();
    const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(whole.data()), whole.size());
    const Codec named = codec_named(codec);
    try {
        Bytes out;
        if (whole.size() < released_bytes) {
            out = decompress(named, bytes, max_size);
        } else {
            const WithoutLock released;
            out = decompress(named, bytes, max_size);
        }
        return nb::bytes(out.data(), out.size());
    } catch (const LibraryMissing& error) {
        throw nb::import_error(error.what());
    } catch (const DataError& error) {
        throw nb::value_error(error.what());
    }
}

// The name of the Python type that owns the bytes; "native memory" for an owner in C++.
std::string owner_name(const Bytes& bytes) {
    const penstock_bytes_v1& handle = bytes.handle();
    using Holder = detail::Owner<detail::PythonBuffer>;
    if (handle.release != &Holder::release) return "native memory";
    const nb::handle exporter = static_cast<Holder*>(handle.owner)->held().view().obj;
    return exporter.is_valid() ? nb::cast<std::string>(exporter.type().attr("__name__")) : "an unnamed object";
}

}  // namespace

void bind_bytes(nb::module_& module) {
    nb::class_<Bytes>(module, "BytesHandle", nb::type_slots(buffer_slots), nb::is_weak_referenceable(),
                      "A shared owner of bytes, as a buffer.")
        .def(
            "__init__",
            [](Bytes* self, nb::handle source) {
                if (nb::isinstance<Bytes>(source)) {
                    new (self) Bytes(nb::cast<const Bytes&>(source));  // faster than through a capsule
                } else {
                    new (self) Bytes(translated([&] { return from_python(source.ptr()); }));
                }
            },
            "source"_a, "Create a handle over a buffer, or over the bytes of another handle.")
        .def("__len__", &Bytes::size)
        .def("__penstock_bytes__",
             [](const Bytes& self) { return nb::steal(translated([&] { return detail::to_capsule(self); })); })
        .def_prop_ro("readonly", &Bytes::readonly, "Whether the bytes can't be written through this handle.")
        .def_prop_ro("owner_name", &owner_name, "The name of the type that owns the bytes.")
        .def("share_readonly", &Bytes::as_readonly, "Return a read-only handle over the same bytes.")
        .def("share", &Bytes::slice, "start"_a, "size_bytes"_a, "Return a handle over a part of the bytes.")
        .def(
            "compare", [](const Bytes& self, nb::handle other) { return self.view().compare(Operand(other).view()); },
            "other"_a, "Return a negative number, 0 or a positive one, if these bytes are less, equal or greater.")
        .def("find_between", &find, "needle"_a, "start"_a, "stop"_a,
             "Return the first position of the needle; -1 if there is none.")
        .def("rfind_between", &rfind, "needle"_a, "start"_a, "stop"_a,
             "Return the last position of the needle; -1 if there is none.")
        .def("count_between", &count, "needle"_a, "start"_a, "stop"_a,
             "Return the number of occurrences of the needle.");
    module.def("crc32c", &checksum, "source"_a, "Return the CRC-32C of a buffer.");
    module.def("decompressed", &decompressed, "source"_a, "codec"_a, "max_size"_a,
               "Return the decompressed bytes of a buffer, at most `max_size`.");
    module.def("living_byte_owners", &living_owners,
               "Return the number of owners of bytes that this module has created and not dropped.");
}

}  // namespace penstock::bindings
