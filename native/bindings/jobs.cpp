// Creates jobs from Python's arguments: this file checks and holds the buffers; core/jobs does the work.
#include "bindings/jobs.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/jobs.hpp"
#include "include/penstock/bytes_python.hpp"
#include "include/penstock/job_python.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace penstock::bindings {

namespace {

constexpr char taken_capsule_name[] = "penstock.job.v2.taken";

using Keys = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

nb::object to_object(Bytes bytes) {
    try {
        return nb::steal(to_python(std::move(bytes)));
    } catch (const PythonErrorSet&) {
        throw nb::python_error();
    }
}

std::span<std::byte> writable(Buffers& buffers, nb::handle out) {
    const Py_buffer* view = buffers.open(out.ptr(), PyBUF_STRIDES | PyBUF_WRITABLE);
    if (view == nullptr) throw nb::type_error("out must be a writable C-contiguous buffer");
    return {static_cast<std::byte*>(view->buf), static_cast<std::size_t>(view->len)};
}

std::span<const std::byte> readable(Buffers& buffers, nb::handle source) {
    const Py_buffer* view = buffers.open(source.ptr());
    if (view == nullptr) throw nb::type_error("the source must be a C-contiguous buffer");
    return {static_cast<const std::byte*>(view->buf), static_cast<std::size_t>(view->len)};
}

bool overlap(std::span<const std::byte> first, std::span<const std::byte> second) {
    const auto begin = reinterpret_cast<std::uintptr_t>(first.data());
    const auto other = reinterpret_cast<std::uintptr_t>(second.data());
    return !first.empty() && !second.empty() && begin < other + second.size() && other < begin + first.size();
}

PythonJob held(std::unique_ptr<Work> work, std::unique_ptr<Buffers> buffers, std::function<nb::object()> result) {
    return {std::make_shared<HeldWork>(std::move(work), std::move(buffers), std::move(result))};
}

std::function<nb::object()> the(nb::object out) {
    return [out = std::move(out)] { return out; };
}

// The result of `make`, which needs a library that may be missing.
template <class Make>
auto loaded(Make make) {
    try {
        return make();
    } catch (const LibraryMissing& error) {
        throw nb::import_error(error.what());
    }
}

PythonJob read(File file, std::uint64_t start, std::optional<std::uint64_t> size, const nb::object& out) {
    if (out.is_none()) {
        auto work = std::make_unique<ReadFile>(std::move(file), start, size);
        return held(std::move(work), nullptr, [reader = work.get()] { return to_object(reader->take_result()); });
    }
    auto buffers = std::make_unique<Buffers>();
    const std::span<std::byte> place = writable(*buffers, out);
    if (size && *size != place.size()) throw nb::value_error("out must have as many bytes as are read");
    return held(std::make_unique<ReadFile>(std::move(file), start, place), std::move(buffers), the(out));
}

PythonJob read_path(const nb::bytes& path, std::uint64_t start, std::optional<std::uint64_t> size, nb::object out) {
    return read(File(std::string(path.c_str(), path.size())), start, size, out);
}

PythonJob read_descriptor(int descriptor, std::uint64_t start, std::optional<std::uint64_t> size, nb::object out) {
    try {
        return read(File(descriptor), start, size, out);
    } catch (const FileError& error) {
        nb::object wrapped = nb::borrow(PyExc_OSError)(error.code().value(), error.text());
        PyErr_SetObject(PyExc_OSError, wrapped.ptr());
        throw nb::python_error();
    }
}

PythonJob copy(nb::object source, nb::object out) {
    auto buffers = std::make_unique<Buffers>();
    const std::span<const std::byte> from = readable(*buffers, source);
    const std::span<std::byte> place = writable(*buffers, out);
    if (from.size() != place.size()) throw nb::value_error("out must have as many bytes as the source");
    return held(std::make_unique<Copy>(from, place.data()), std::move(buffers), the(out));
}

// An array's shape, as a vector since a buffer may move when the next one is opened.
struct Rows {
    std::span<std::byte> bytes;
    std::vector<Py_ssize_t> shape;

    std::size_t row_bytes(std::size_t item_bytes) const {
        for (std::size_t axis = 1; axis < shape.size(); ++axis) item_bytes *= static_cast<std::size_t>(shape[axis]);
        return item_bytes;
    }
};

Rows rows_of(const Py_buffer* view, const char* refusal) {
    if (view == nullptr || view->ndim == 0) throw nb::type_error(refusal);
    return {{static_cast<std::byte*>(view->buf), static_cast<std::size_t>(view->len)},
            {view->shape, view->shape + view->ndim}};
}

PythonJob stack(nb::typed<nb::sequence, nb::object> arrays, nb::object out) {
    const Items items(arrays);
    auto buffers = std::make_unique<Buffers>();
    buffers->reserve(static_cast<std::size_t>(items.size()) + 1);
    const Py_buffer* column = buffers->open(out.ptr(), PyBUF_STRIDES | PyBUF_WRITABLE);
    const Rows batch = rows_of(column, "out must be a writable C-contiguous array with a row axis");
    if (batch.shape[0] != items.size()) throw nb::value_error("out must have a row for each array");
    const std::size_t row_bytes = batch.row_bytes(static_cast<std::size_t>(column->itemsize));
    const nb::object name = nb::steal(PyUnicode_InternFromString("dtype"));
    const nb::object dtype = out.attr(name);
    std::vector<const void*> sources;
    sources.reserve(static_cast<std::size_t>(items.size()));
    for (Py_ssize_t index = 0; index < items.size(); ++index) {
        const bool same_dtype = has_dtype(items[index], name.ptr(), dtype.ptr());
        const Py_buffer* view = buffers->open(items[index]);
        if (!same_dtype || view == nullptr || static_cast<std::size_t>(view->ndim) + 1 != batch.shape.size() ||
            (view->ndim > 0 && !std::equal(view->shape, view->shape + view->ndim, batch.shape.begin() + 1))) {
            const std::string place = std::to_string(index);
            throw nb::value_error(
                ("array " + place + " must be C-contiguous, of the dtype of out and the shape of its rows").c_str());
        }
        const std::span<const std::byte> source(static_cast<const std::byte*>(view->buf), row_bytes);
        if (overlap(source, batch.bytes)) throw nb::value_error("no array may overlap out");
        sources.push_back(view->buf);
    }
    auto work = std::make_unique<Stack>(std::move(sources), row_bytes, batch.bytes.data());
    return held(std::move(work), std::move(buffers), the(out));
}

PythonJob gather(nb::object source, const Keys& keys, nb::object out) {
    auto buffers = std::make_unique<Buffers>();
    const Py_buffer* column = buffers->open(source.ptr());
    const Rows rows = rows_of(column, "the source must be a C-contiguous array with a row axis");
    const std::size_t row_bytes = rows.row_bytes(static_cast<std::size_t>(column->itemsize));
    Rows batch = rows_of(buffers->open(out.ptr(), PyBUF_STRIDES | PyBUF_WRITABLE),
                         "out must be a writable C-contiguous array with a row axis");
    const nb::object name = nb::steal(PyUnicode_InternFromString("dtype"));
    const bool same_dtype = has_dtype(out.ptr(), name.ptr(), nb::object(source.attr(name)).ptr());
    if (!same_dtype || batch.shape.size() != rows.shape.size() ||
        static_cast<std::size_t>(batch.shape[0]) != keys.size() ||
        !std::equal(batch.shape.begin() + 1, batch.shape.end(), rows.shape.begin() + 1)) {
        throw nb::value_error("out must have a row for each key, of the dtype and shape of the source's rows");
    }
    if (overlap(rows.bytes, batch.bytes)) throw nb::value_error("the source must not overlap out");
    const Piece piece{rows.bytes.data(), static_cast<std::int64_t>(rows.shape[0])};
    auto work =
        std::make_unique<Gather>(RowTable({&piece, 1}, row_bytes, row_bytes),
                                 std::vector<std::int64_t>(keys.data(), keys.data() + keys.size()), batch.bytes.data());
    return held(std::move(work), std::move(buffers), the(out));
}

PythonJob checksum(nb::object source, std::uint32_t initial) {
    auto buffers = std::make_unique<Buffers>();
    auto work = std::make_unique<Checksum>(readable(*buffers, source), initial);
    return held(std::move(work), std::move(buffers), [job = work.get()] { return nb::object(nb::int_(job->value())); });
}

PythonJob xxh3(nb::object source, std::uint64_t seed) {
    auto buffers = std::make_unique<Buffers>();
    const std::span<const std::byte> from = readable(*buffers, source);
    auto work = loaded([&] { return std::make_unique<Xxh3>(from, seed); });
    return held(std::move(work), std::move(buffers), [job = work.get()] { return nb::object(nb::int_(job->value())); });
}

PythonJob decompress(nb::object source, const std::string& codec, std::optional<std::uint64_t> size, nb::object out,
                     std::uint64_t max_size) {
    const Codec named = codec_named(codec);
    auto buffers = std::make_unique<Buffers>();
    const std::span<const std::byte> from = readable(*buffers, source);
    if (out.is_none()) {
        auto work = loaded([&] { return std::make_unique<Decompress>(named, from, size, max_size); });
        return held(std::move(work), std::move(buffers), [job = work.get()] { return to_object(job->take_result()); });
    }
    const std::span<std::byte> place = writable(*buffers, out);
    if (size && *size != place.size()) throw nb::value_error("out must have `size` bytes");
    if (overlap(from, place)) throw nb::value_error("the source must not overlap out");
    return held(loaded([&] { return std::make_unique<Decompress>(named, from, place); }), std::move(buffers), the(out));
}

// The capsule is renamed, as in DLPack, so that its job is taken only once.
PythonJob foreign(nb::object capsule) {
    if (PyCapsule_IsValid(capsule.ptr(), taken_capsule_name))
        throw nb::value_error("the job of this capsule was taken before");
    if (!PyCapsule_IsValid(capsule.ptr(), job_capsule_name))
        throw nb::type_error("the capsule must have the name penstock.job.v2");
    const void* handle = PyCapsule_GetPointer(capsule.ptr(), job_capsule_name);
    auto work = std::make_unique<Foreign>(Job::share(*static_cast<const penstock_job_v2*>(handle)));
    if (PyCapsule_SetName(capsule.ptr(), taken_capsule_name) != 0) throw nb::python_error();
    return held(std::move(work), nullptr, [job = work.get()]() -> nb::object {
        if (job->makes_python()) {
            nb::object made = nb::steal(static_cast<PyObject*>(job->finish()));
            if (made.is_valid()) return made;
            if (PyErr_Occurred() == nullptr) {
                PyErr_SetString(PyExc_SystemError, "a job's finish returned null without setting an exception");
            }
            throw nb::python_error();
        }
        Bytes made;
        return job->take_result(made) ? to_object(std::move(made)) : nb::none();
    });
}

}  // namespace

void bind_jobs(nb::module_& module) {
    nb::class_<PythonJob>(module, "PoolJob", "A job that is not submitted yet, with its buffers.");
    module.def("read_path_job", &read_path, "path"_a, "start"_a, "size"_a.none(), "out"_a.none(),
               "Create a job that opens a file and reads a range of it: into `out`, or into new Bytes.");
    module.def("read_descriptor_job", &read_descriptor, "descriptor"_a, "start"_a, "size"_a.none(), "out"_a.none(),
               "Create the same job for an open file; the descriptor is copied.");
    module.def("copy_job", &copy, "source"_a, "out"_a, "Create a job that copies bytes.");
    module.def("stack_job", &stack, "arrays"_a, "out"_a, "Create a job that copies arrays into the rows of `out`.");
    module.def("gather_job", &gather, "source"_a, "keys"_a.noconvert(), "out"_a,
               "Create a job that copies the rows of `keys` into the rows of `out`.");
    module.def("checksum_job", &checksum, "source"_a, "initial"_a, "Create a job that computes a CRC-32.");
    module.def("xxh3_job", &xxh3, "source"_a, "seed"_a, "Create a job that computes the 64-bit XXH3.");
    module.def("decompress_job", &decompress, "source"_a, "codec"_a, "size"_a.none(), "out"_a.none(), "max_size"_a,
               "Create a job that decompresses: into `out`, or into new Bytes of `size`, or of at most `max_size`.");
    module.def("foreign_job", &foreign, "capsule"_a, "Take an extension's job.");
}

}  // namespace penstock::bindings
