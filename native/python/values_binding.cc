#include "native/python/values.h"

#include <nanobind/stl/string_view.h>

#include "native/inference/infer_datatype.h"

namespace millpond::python {

namespace {

template <typename... E>
void RegisterEnums(nanobind::module_& module) {
  (RegisterEnum<E>(module), ...);
}
template <typename... T>
void RegisterDataclasses(nanobind::module_& module) {
  (RegisterValue<T>(module), ...);
}

}  // namespace

void RegisterValues(nanobind::module_& module) {
  module.attr("value_fields") = nanobind::dict();
  module.attr("enum_names") = nanobind::dict();
  nanobind::dict datatypes;
  for (const auto& [name, dtype] : inference::kDatatypes) datatypes[nanobind::int_(dtype)] = name;
  module.attr("infer_datatypes") = datatypes;
  RegisterEnums<base::ThreadPriority, metrics::Phase, metrics::Method, rpc::ReplyCompression,
                tensor::RowVerdict::Kind, pjrt::RunStage, pjrt::CpuReason>(module);
  RegisterDataclasses<
      tf::RuntimeOptions, memory::MemoryStatistics, tf::MemoryPlan, memory::SlabPoolStatistics,
      memory::TableStatistics, tf::TableReport, tf::MissingKernel, pjrt::SizeTimes,
      tf::AcceleratedSignature, pjrt::AcceleratorMemory, pjrt::AcceleratorState, pjrt::RunFigures,
      pjrt::UploadFigures, servable::BatchSettings, memory::ArenaStatistics, memory::ArenaRemains,
      servable::BatchFigures, servable::SignatureBatching, servable::RequestReservoirStatistics,
      servable::RequestLogStatistics, tf::LoggedBatch, servable::Routing, metrics::LatencyFigures,
      metrics::HistoryPoint, base::TraceContext, metrics::RequestSpan, tf::EventTotal, tf::Trace,
      rpc::ReflectionTable, rpc::HttpOptions, rpc::ServerOptions>(module);
}

}  // namespace millpond::python
