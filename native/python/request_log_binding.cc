#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "native/python/binding.h"
#include "native/python/values.h"
#include "native/servable/record_queue.h"
#include "native/servable/request_log.h"
#include "native/tf/record_frames.h"

namespace millpond::python {
namespace {

namespace nb = nanobind;
using servable::RecordQueue;
using servable::RequestLog;

using Names = std::optional<std::vector<std::string>>;

servable::LoggedNames LoggedNamesOf(Names names) {
  servable::LoggedNames logged;
  logged.are_all = !names.has_value();
  if (names) logged.names.insert(names->begin(), names->end());
  return logged;
}

void SetLog(RequestLog& self, double sampling_rate, Names inputs, Names outputs) {
  self.Set({sampling_rate, LoggedNamesOf(std::move(inputs)), LoggedNamesOf(std::move(outputs))});
}

// The bytes of records that a call takes: a small part of the cache, and many records.
constexpr size_t kTakeBytes = size_t{1} << 20U;

using LoggedBatches = nb::typed<nb::list, tf::LoggedBatch>;

// Removes the records only when Python has them, so that no failure on the way loses one.
LoggedBatches Take(RecordQueue& self) {
  tf::LoggedBatches read = WithoutGil([&] { return tf::ReadLoggedBatches(self, kTakeBytes); });
  using Caster = nb::detail::make_caster<std::vector<tf::LoggedBatch>>;
  auto batches =
      nb::steal<LoggedBatches>(Caster::from_cpp(read.batches, nb::rv_policy::copy, nullptr));
  if (!batches.is_valid()) nb::raise_python_error();
  self.RemoveUpTo(read.end);
  return batches;
}

}  // namespace

void RegisterRequestLog(nb::module_& module) {
  nb::class_<RecordQueue>(module, "RecordQueue", nb::is_final())
      .def(nb::new_([](size_t bytes_max) { return std::make_shared<RecordQueue>(bytes_max); }),
           nb::arg("bytes_max"))
      .def("take", &Take)
      .def_prop_ro("used_bytes", &RecordQueue::used_bytes);
  nb::class_<RequestLog>(module, "RequestLog", nb::is_final())
      .def(nb::new_([](std::shared_ptr<RecordQueue> queue, uint64_t log_id) {
             return std::make_shared<RequestLog>(std::move(queue), log_id);
           }),
           nb::arg("queue"), nb::arg("log_id"))
      .def("set", &SetLog, nb::kw_only(), nb::arg("sampling_rate"), nb::arg("inputs").none(),
           nb::arg("outputs").none())
      .def("statistics", &RequestLog::Statistics);
}

}  // namespace millpond::python
