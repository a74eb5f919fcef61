// What extensions in the tests share: errors of Python become what its C API returns for them.
#pragma once

#include <penstock/bytes_python.hpp>

template <class Function>
PyObject* guarded(Function function) {
    try {
        return function();
    } catch (const penstock::PythonErrorSet&) {
        return nullptr;
    }
}
