#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "native/base/status.h"
#include "native/servable/servable_entry.h"

// What the files of this folder share. Each Register* adds one concept to the module; module.cc is
// the table of contents, serving/_native.pyi the contract.
namespace millpond::python {

void RegisterStatus(nanobind::module_& module);
void RegisterRuntime(nanobind::module_& module);
void RegisterServable(nanobind::module_& module);
void RegisterServingMap(nanobind::module_& module);
void RegisterServer(nanobind::module_& module);

// Raises StatusError(code, message) where `status` is not OK. Needs the GIL.
void ThrowIfError(const base::Status& status);

template <typename T>
T ValueOrThrow(base::StatusOr<T> value) {
  ThrowIfError(value.status());
  return std::move(value.value());
}

// Runs `function` without the GIL: the control plane's other threads go on meanwhile.
template <typename Function>
auto WithoutGil(Function&& function) {
  const nanobind::gil_scoped_release release;
  return std::forward<Function>(function)();
}

// At most 30 years, so that a sum with any clock's now does not overflow.
inline int64_t SecondsToNs(double seconds) {
  constexpr double kMaxSeconds = 1e9;
  return static_cast<int64_t>(std::clamp(seconds, 0.0, kMaxSeconds) * 1e9);
}

// Python's hold on a loaded version.
class PyServable {
 public:
  explicit PyServable(std::shared_ptr<servable::ServableEntry> entry) : entry_(std::move(entry)) {}
  // The last hold frees the version, which may take long, without the GIL.
  ~PyServable() {
    const nanobind::gil_scoped_release release;
    entry_.reset();
  }
  PyServable(const PyServable&) = delete;
  PyServable& operator=(const PyServable&) = delete;

  const std::shared_ptr<servable::ServableEntry>& entry() const { return entry_; }

 private:
  std::shared_ptr<servable::ServableEntry> entry_;
};

}  // namespace millpond::python
