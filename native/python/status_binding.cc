#include "native/python/binding.h"

namespace millpond::python {
namespace {

namespace nb = nanobind;

PyObject* status_error_type = nullptr;  // owned by the module

}  // namespace

void RegisterStatus(nb::module_& module) {
  status_error_type = PyErr_NewExceptionWithDoc(
      "serving.data_plane._native.StatusError",
      "A status that is not OK: args == (code, message), code a gRPC status code's number.",
      nullptr, nullptr);
  module.attr("StatusError") = nb::handle(status_error_type);
}

std::string PathBytes(const nb::str& path) {
  const auto bytes = nb::steal<nb::bytes>(PyUnicode_EncodeFSDefault(path.ptr()));
  if (!bytes.is_valid()) throw nb::python_error();
  return {bytes.c_str(), bytes.size()};
}

nb::str AnyText(const std::string& text) {
  auto decoded = nb::steal<nb::str>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
  if (!decoded.is_valid()) throw nb::python_error();
  return decoded;
}

void ThrowIfError(const base::Status& status) {
  if (status.ok()) return;
  const nb::tuple args = nb::make_tuple(static_cast<int>(status.code()), AnyText(status.message()));
  PyErr_SetObject(status_error_type, args.ptr());
  throw nb::python_error();
}

}  // namespace millpond::python
