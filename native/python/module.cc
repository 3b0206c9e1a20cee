#include <nanobind/nanobind.h>

#include "native/python/binding.h"

NB_MODULE(_data_plane, module) {
  using namespace millpond::python;  // NOLINT(google-build-using-namespace)
  RegisterStatus(module);
  RegisterRuntime(module);
  RegisterMemory(module);
  RegisterReservoir(module);
  RegisterRequestLog(module);
  RegisterStatistics(module);
  RegisterSpans(module);
  RegisterAccelerator(module);
  RegisterServable(module);
  RegisterServingMap(module);
  RegisterTransport(module);
  RegisterAdmission(module);
  RegisterByteBudget(module);
  RegisterServer(module);
  RegisterTrace(module);
  RegisterValues(module);  // last, because fields have the types of the others
}
