#pragma once

#include <nanobind/stl/array.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "native/base/thread_priority.h"
#include "native/base/trace_context.h"
#include "native/memory/request_memory.h"
#include "native/memory/slab_pool.h"
#include "native/memory/table_store.h"
#include "native/memory/version_arena.h"
#include "native/metrics/latency_histogram.h"
#include "native/metrics/model_history.h"
#include "native/metrics/request_recorder.h"
#include "native/metrics/span_buffer.h"
#include "native/pjrt/accelerator.h"
#include "native/pjrt/device_parameters.h"
#include "native/pjrt/run_figures.h"
#include "native/python/binding.h"
#include "native/python/value_class.h"
#include "native/rpc/reflection_service.h"
#include "native/rpc/server.h"
#include "native/servable/batch_settings.h"
#include "native/servable/batch_size.h"
#include "native/servable/batch_statistics.h"
#include "native/servable/batching_servable.h"
#include "native/servable/request_log.h"
#include "native/servable/request_reservoir.h"
#include "native/servable/routing.h"
#include "native/tensor/row_verdict.h"
#include "native/tf/record_frames.h"
#include "native/tf/runtime.h"
#include "native/tf/saved_model.h"
#include "native/tf/trace_session.h"
#include "native/tf/version_load.h"

// The values of the seam, each with its fields. The dataclasses say what the fields mean.
namespace millpond::python {

template <>
struct EnumNames<base::ThreadPriority> {
  static constexpr char kName[] = "THREAD_PRIORITIES";
  static constexpr std::array kNames = {"normal", "nice", "idle"};
};

template <>
struct EnumNames<metrics::Phase> {
  static constexpr char kName[] = "PHASES";
  static constexpr std::array kNames = {"queue", "decode", "batch", "run", "encode", "total"};
};
static_assert(EnumNames<metrics::Phase>::kNames.size() == metrics::kPhaseCount);

template <>
struct EnumNames<metrics::Method> {
  static constexpr char kName[] = "VERSION_METHODS";
  static constexpr const auto& kNames = metrics::kMethodNames;
};

template <>
struct EnumNames<tensor::RowVerdict::Kind> {
  static constexpr char kName[] = "ROW_VERDICTS";
  static constexpr std::array kNames = {"independent", "unknown", "mixes"};
};

template <>
struct EnumNames<rpc::ReplyCompression> {
  static constexpr char kName[] = "REPLY_COMPRESSIONS";
  static constexpr std::array kNames = {"none", "request", "deflate", "gzip"};
};

template <>
struct ValueClass<tf::RuntimeOptions> {
  using Value = tf::RuntimeOptions;
  static constexpr auto kModule = "serving.data_plane.plane";
  static constexpr char kName[] = "RuntimeOptions";
  static constexpr auto kFields =
      std::tuple{Field{"intra_op_thread_count", &Value::intra_op_thread_count},
                 Field{"inter_op_thread_count", &Value::inter_op_thread_count},
                 Field{"is_stock", &Value::is_stock},
                 Field{"has_load_pool", &Value::has_load_pool},
                 Field{"checks_method_names", &Value::checks_method_names},
                 Field{"serves_session_run", &Value::serves_session_run},
                 Field{"keeps_graphs", &Value::keeps_graphs}};
};

template <>
struct ValueClass<memory::MemoryStatistics> {
  using Value = memory::MemoryStatistics;
  static constexpr auto kModule = "serving.data_plane.plane";
  static constexpr char kName[] = "RequestMemoryStatistics";
  static constexpr auto kFields = std::tuple{Field{"in_use_bytes", &Value::in_use_bytes},
                                             Field{"in_use_bytes_peak", &Value::in_use_bytes_peak},
                                             Field{"allocation_count", &Value::allocation_count}};
};

template <>
struct ValueClass<tf::MemoryPlan> {
  using Value = tf::MemoryPlan;
  static constexpr auto kModule = "serving.data_plane.loads";
  static constexpr char kName[] = "MemoryPlan";
  static constexpr auto kFields = std::tuple{
      Field{"parameter_bytes", &Value::parameter_bytes}, Field{"slab_bytes", &Value::slab_bytes},
      Field{"shared_bytes", &Value::shared_bytes}, Field{"log_bytes", &Value::log_bytes}};
};

template <>
struct ValueClass<memory::SlabPoolStatistics> {
  using Value = memory::SlabPoolStatistics;
  static constexpr auto kModule = "serving.data_plane.loads";
  static constexpr char kName[] = "SlabPoolStatistics";
  static constexpr auto kFields =
      std::tuple{Field{"in_use_count", &Value::in_use_count},
                 Field{"in_use_bytes", &Value::in_use_reserved_bytes},
                 Field{"spare_count", &Value::spare_count},
                 Field{"spare_bytes", &Value::spare_reserved_bytes},
                 Field{"spare_resident_bytes", &Value::spare_resident_bytes},
                 Field{"surplus_resident_bytes", &Value::surplus_resident_bytes},
                 Field{"quarantined_count", &Value::quarantined_count},
                 Field{"quarantined_bytes", &Value::quarantined_reserved_bytes},
                 Field{"reservation_refusal", &Value::reservation_refusal}};
};

template <>
struct ValueClass<memory::TableStatistics> {
  using Value = memory::TableStatistics;
  static constexpr auto kModule = "serving.data_plane.loads";
  static constexpr char kName[] = "TableStatistics";
  static constexpr auto kFields = std::tuple{
      Field{"held_count", &Value::held_count},       Field{"held_bytes", &Value::held_bytes},
      Field{"standby_count", &Value::standby_count}, Field{"standby_bytes", &Value::standby_bytes},
      Field{"dirty_count", &Value::dirty_count},     Field{"copying_bytes", &Value::copying_bytes}};
};

template <>
struct ValueClass<tf::TableReport> {
  using Value = tf::TableReport;
  static constexpr auto kModule = "serving.data_plane.loads";
  static constexpr char kName[] = "TableReport";
  static constexpr auto kFields = std::tuple{
      Field{"variable", &Value::variable}, Field{"table_bytes", &Value::bytes},
      Field{"read_bytes", &Value::read_bytes},
      Field{"changed_row_count", &Value::changed_row_count}, Field{"reason", &Value::reason}};
};

template <>
struct ValueClass<tf::MissingKernel> {
  using Value = tf::MissingKernel;
  static constexpr auto kModule = "serving.data_plane.loads";
  static constexpr char kName[] = "MissingKernel";
  static constexpr auto kFields = std::tuple{Field{"signature", &Value::signature},
                                             Field{"op", &Value::op},
                                             Field{"node", &Value::node},
                                             Field{"function", &Value::function},
                                             Field{"is_certain", &Value::is_certain},
                                             Field{"is_built", &Value::is_built}};
};

template <>
struct ValueClass<pjrt::SizeTimes> {
  using Value = pjrt::SizeTimes;
  static constexpr auto kModule = "serving.data_plane.servables";
  static constexpr char kName[] = "SizeTimes";
  static constexpr auto kFields =
      std::tuple{Field{"rows", &Value::rows}, Field{"cpu_ns", &Value::cpu_ns},
                 Field{"accelerator_ns", &Value::accelerator_ns},
                 Field{"is_on_accelerator", &Value::is_on_accelerator}};
};

template <>
struct ValueClass<tf::AcceleratedSignature> {
  using Value = tf::AcceleratedSignature;
  static constexpr auto kModule = "serving.data_plane.servables";
  static constexpr char kName[] = "AcceleratedSignature";
  static constexpr auto kFields = std::tuple{Field{"name", &Value::name},
                                             Field{"rows", &Value::rows},
                                             Field{"reason", &Value::reason},
                                             Field{"host_ops", &Value::host_ops},
                                             Field{"host_tables", &Value::host_tables},
                                             Field{"untuned_rows", &Value::untuned_rows},
                                             Field{"needs_exact_rows", &Value::needs_exact_rows},
                                             Field{"sizes", &Value::sizes}};
};

template <>
struct ValueClass<pjrt::AcceleratorMemory> {
  using Value = pjrt::AcceleratorMemory;
  static constexpr auto kModule = "serving.data_plane.loads";
  static constexpr char kName[] = "AcceleratorMemory";
  static constexpr auto kFields = std::tuple{Field{"used_bytes", &Value::used_bytes},
                                             Field{"limit_bytes", &Value::limit_bytes}};
};

template <>
struct ValueClass<pjrt::AcceleratorState> {
  using Value = pjrt::AcceleratorState;
  static constexpr auto kModule = "serving.data_plane.loads";
  static constexpr char kName[] = "AcceleratorState";
  static constexpr auto kFields =
      std::tuple{Field{"limit_bytes", &Value::limit_bytes},
                 Field{"parameter_bytes", &Value::parameter_bytes},
                 Field{"idle_bytes", &Value::idle_bytes},
                 Field{"busy_ns", &Value::busy_ns},
                 Field{"is_failing", &Value::is_failing},
                 Field{"compiled_count", &Value::compiled_count},
                 Field{"loaded_count", &Value::loaded_count},
                 Field{"shared_count", &Value::shared_count},
                 Field{"pinned_bytes", &Value::pinned_bytes},
                 Field{"pinned_limit_bytes", &Value::pinned_limit_bytes},
                 Field{"staging_bytes", &Value::staging_bytes}};
};

template <>
struct ValueClass<pjrt::UploadFigures> {
  using Value = pjrt::UploadFigures;
  static constexpr auto kModule = "serving.data_plane.servables";
  static constexpr char kName[] = "AcceleratorUploads";
  static constexpr auto kFields = std::tuple{Field{"device", &Value::device},
                                             Field{"resident_bytes", &Value::resident_bytes},
                                             Field{"upload_count", &Value::upload_count},
                                             Field{"upload_ns", &Value::upload_ns},
                                             Field{"drop_count", &Value::drop_count},
                                             Field{"uploaded_bytes", &Value::uploaded_bytes},
                                             Field{"unpinned_bytes", &Value::unpinned_bytes},
                                             Field{"kept_bytes", &Value::kept_bytes},
                                             Field{"full_count", &Value::full_count},
                                             Field{"full_reason", &Value::full_reason}};
};

template <>
struct EnumNames<pjrt::RunStage> {
  static constexpr char kName[] = "RUN_STAGES";
  static constexpr std::array kNames = {"wait", "transfer_in", "run", "transfer_out"};
};
static_assert(EnumNames<pjrt::RunStage>::kNames.size() == pjrt::kRunStageCount);

template <>
struct EnumNames<pjrt::CpuReason> {
  static constexpr char kName[] = "CPU_REASONS";
  static constexpr std::array kNames = {"shape",  "memory",   "failed",  "lost",  "away",
                                        "waited", "gave_way", "refused", "faster"};
};
static_assert(EnumNames<pjrt::CpuReason>::kNames.size() == pjrt::kCpuReasonCount);

template <>
struct ValueClass<pjrt::RunFigures> {
  using Value = pjrt::RunFigures;
  static constexpr auto kModule = "serving.data_plane.servables";
  static constexpr char kName[] = "AcceleratorRuns";
  static constexpr auto kFields = std::tuple{
      Field{"signature", &Value::signature},   Field{"device", &Value::device},
      Field{"sizes", &Value::sizes},           Field{"run_counts", &Value::run_counts},
      Field{"row_counts", &Value::row_counts}, Field{"timed_run_count", &Value::timed_run_count},
      Field{"stage_ns", &Value::stage_ns},     Field{"cpu_run_counts", &Value::cpu_run_counts}};
};

template <>
struct ValueClass<servable::BatchSettings> {
  using Value = servable::BatchSettings;
  static constexpr auto kModule = "serving.data_plane.loads";
  static constexpr char kName[] = "BatchSettings";
  static constexpr auto kFields = std::tuple{
      Field{"rows_max", &Value::rows_max},
      Field{"run_seconds_max",
            +[](Value& settings, double seconds) { settings.run_ns_max = SecondsToNs(seconds); }},
      Field{"splits", &Value::splits},
      Field{"allowed_rows", &Value::allowed_rows},
      Field{"pads_inputs", &Value::pads_inputs},
      Field{"waiting_requests_max", &Value::waiting_requests_max},
      Field{"slots", &Value::slots},
      Field{"relative_tolerance", &Value::relative_tolerance},
      Field{"may_mix_rows", &Value::may_mix_rows}};
};

template <>
struct ValueClass<memory::ArenaStatistics> {
  using Value = memory::ArenaStatistics;
  static constexpr auto kModule = "serving.data_plane.servables";
  static constexpr char kName[] = "ArenaStatistics";
  static constexpr auto kFields = std::tuple{
      Field{"allocated_bytes", &Value::allocated_bytes},
      Field{"active_unused_bytes", &Value::active_unused_bytes},
      Field{"retained_bytes", &Value::retained_bytes}, Field{"unused_bytes", &Value::unused_bytes},
      Field{"slab_resident_bytes", &Value::slab_resident_bytes}};
};

template <>
struct ValueClass<memory::ArenaRemains> {
  using Value = memory::ArenaRemains;
  static constexpr auto kModule = "serving.data_plane.servables";
  static constexpr char kName[] = "ArenaRemains";
  static constexpr auto kFields =
      std::tuple{Field{"live_bytes", &Value::live_bytes},
                 Field{"live_blocks",
                       +[](const Value& remains) {
                         std::vector<std::pair<int64_t, int64_t>> blocks;
                         for (const auto& live : remains.live_blocks) {
                           blocks.emplace_back(live.block_bytes, live.count);
                         }
                         return blocks;
                       }},
                 Field{"overflow_block_count", &Value::overflow_block_count}};
};

template <>
struct ValueClass<servable::BatchFigures> {
  using Value = servable::BatchFigures;
  static constexpr auto kModule = "serving.data_plane.servables";
  static constexpr char kName[] = "BatchFigures";
  static constexpr auto kFields =
      std::tuple{Field{"run_count", &Value::run_count},
                 Field{"request_count", &Value::request_count},
                 Field{"row_count", &Value::row_count},
                 Field{"padding_row_count", &Value::padding_row_count},
                 Field{"failed_batch_count", &Value::failed_batch_count},
                 Field{"split_request_count", &Value::split_request_count},
                 Field{"wait_ns", &Value::wait_ns},
                 Field{"run_ns", &Value::run_ns},
                 Field{"by_rows", &Value::by_rows},
                 Field{"by_requests", &Value::by_requests},
                 Field{"by_wait", &Value::by_wait},
                 Field{"by_run", &Value::by_run}};
};

template <>
struct ValueClass<servable::SignatureBatching> {
  using Value = servable::SignatureBatching;
  static constexpr auto kModule = "serving.data_plane.servables";
  static constexpr char kName[] = "SignatureBatching";
  static constexpr auto kFields = std::tuple{
      Field{"signature", &Value::signature},
      Field{"is_on", &Value::is_on},
      Field{"refusal", &Value::refusal},
      Field{"rows",
            +[](const Value& state) { return Named<tensor::RowVerdict::Kind>{state.rows.kind}; }},
      Field{"rows_reason", +[](const Value& state) { return state.rows.reason; }},
      Field{"joined_rows_max", &Value::joined_rows_max},
      Field{"joined_requests_max", +[](const Value&) { return servable::kTakenRequestsMax; }},
      Field{"figures", &Value::figures}};
};

template <>
struct ValueClass<servable::RequestReservoirStatistics> {
  using Value = servable::RequestReservoirStatistics;
  static constexpr auto kModule = "serving.data_plane.servables";
  static constexpr char kName[] = "RequestReservoirStatistics";
  static constexpr auto kFields = std::tuple{Field{"request_count", &Value::request_count},
                                             Field{"request_bytes", &Value::request_bytes}};
};

template <>
struct ValueClass<servable::RequestLogStatistics> {
  using Value = servable::RequestLogStatistics;
  static constexpr auto kModule = "serving.data_plane.request_log";
  static constexpr char kName[] = "RequestLogStatistics";
  static constexpr auto kFields = std::tuple{Field{"sampled_count", &Value::sampled_count},
                                             Field{"dropped_count", &Value::dropped_count}};
};

// Returns the bytes for Python; without a value, and with a MemoryError, if there is no memory for
// them. The constructor of nanobind::bytes would throw, which ends the process in a conversion.
inline nanobind::bytes BytesOf(const std::string& bytes) {
  return nanobind::steal<nanobind::bytes>(
      PyBytes_FromStringAndSize(bytes.data(), static_cast<Py_ssize_t>(bytes.size())));
}

template <>
struct ValueClass<tf::LoggedBatch> {
  using Value = tf::LoggedBatch;
  static constexpr auto kModule = "serving.data_plane.request_log";
  static constexpr char kName[] = "LoggedBatch";
  static constexpr auto kFields =
      std::tuple{Field{"log_id", &Value::log_id}, Field{"record_count", &Value::record_count},
                 Field{"frames", +[](const Value& batch) { return BytesOf(batch.frames); }},
                 Field{"heads", +[](const Value& batch) { return BytesOf(batch.heads); }}};
};

template <>
struct ValueClass<servable::Routing> {
  using Value = servable::Routing;
  static constexpr auto kModule = "serving.core.servable";
  static constexpr char kName[] = "Routing";
  static constexpr auto kFields = std::tuple{Field{"default_version", &Value::default_version},
                                             Field{"labels", &Value::labels},
                                             Field{"canary_version", &Value::canary_version},
                                             Field{"canary_weight", &Value::canary_weight},
                                             Field{"canary_header", &Value::canary_header},
                                             Field{"awaited_labels", &Value::awaited_labels}};
};

template <>
struct ValueClass<metrics::LatencyFigures> {
  using Value = metrics::LatencyFigures;
  static constexpr auto kModule = "serving.data_plane.request_statistics";
  static constexpr char kName[] = "LatencyFigures";
  static constexpr auto kFields =
      std::tuple{Field{"count", &Value::count},   Field{"sum_ns", &Value::sum_ns},
                 Field{"p50_ns", &Value::p50_ns}, Field{"p90_ns", &Value::p90_ns},
                 Field{"p99_ns", &Value::p99_ns}, Field{"p999_ns", &Value::p999_ns},
                 Field{"max_ns", &Value::max_ns}};
};

template <>
struct ValueClass<metrics::HistoryPoint> {
  using Value = metrics::HistoryPoint;
  static constexpr auto kModule = "serving.data_plane.request_statistics";
  static constexpr char kName[] = "HistoryPoint";
  static constexpr auto kFields =
      std::tuple{Field{"at_ns", &Value::at_ns}, Field{"count", &Value::count},
                 Field{"failed_count", &Value::failed_count}, Field{"latency", &Value::latency}};
};

template <>
struct ValueClass<base::TraceContext> {
  using Value = base::TraceContext;
  static constexpr auto kModule = "serving.base.trace_context";
  static constexpr char kName[] = "TraceContext";
  static constexpr auto kFields =
      std::tuple{Field{"trace_id", &Value::trace_id}, Field{"parent_id", &Value::parent_id},
                 Field{"is_sampled", &Value::is_sampled}, Field{"state", &Value::state}};
};

template <>
struct ValueClass<metrics::RequestSpan> {
  using Value = metrics::RequestSpan;
  static constexpr auto kModule = "serving.data_plane.requests";
  static constexpr char kName[] = "RequestSpan";
  static constexpr auto kFields = std::tuple{
      Field{"context", &Value::context},
      Field{"method", +[](const Value& span) { return Named<metrics::Method>{span.method}; }},
      Field{"model", +[](const Value& span) { return AnyText(span.model); }},
      Field{"version", &Value::version},
      Field{"code", +[](const Value& span) { return static_cast<int>(span.status.code()); }},
      Field{"message", +[](const Value& span) { return AnyText(span.status.message()); }},
      Field{"received_ns", &Value::received_ns},
      Field{"phase_ns",
            +[](const Value& span) {
              std::map<std::string, int64_t> times;
              for (size_t phase = 0; phase < metrics::kPhaseCount; ++phase) {
                const int64_t spent_ns = span.times.ns[phase];
                if (phase == static_cast<size_t>(metrics::Phase::kTotal)) continue;
                if (spent_ns == metrics::PhaseTimes::kNone) continue;
                times[EnumNames<metrics::Phase>::kNames[phase]] = spent_ns;
              }
              return times;
            }},
      Field{"total_ns", +[](const Value& span) { return span.times[metrics::Phase::kTotal]; }},
      Field{"request_bytes", &Value::request_bytes},
      Field{"response_bytes", &Value::response_bytes}};
};

template <>
struct ValueClass<tf::EventTotal> {
  using Value = tf::EventTotal;
  static constexpr auto kModule = "serving.data_plane.traces";
  static constexpr char kName[] = "EventTotal";
  static constexpr auto kFields =
      std::tuple{Field{"name", &Value::name}, Field{"count", &Value::count},
                 Field{"total_ns", &Value::total_ns}};
};

template <>
struct ValueClass<tf::Trace> {
  using Value = tf::Trace;
  static constexpr auto kModule = "serving.data_plane.traces";
  static constexpr char kName[] = "Trace";
  static constexpr auto kFields =
      std::tuple{Field{"event_count", &Value::event_count}, Field{"totals", &Value::totals},
                 Field{"xspace", +[](const Value& trace) {
                         return nanobind::bytes(trace.xspace.data(), trace.xspace.size());
                       }}};
};

template <>
struct ValueClass<rpc::ReflectionTable> {
  using Value = rpc::ReflectionTable;
  static constexpr auto kModule = "serving.data_plane.requests";
  static constexpr char kName[] = "ReflectionTable";
  static constexpr auto kFields = std::tuple{
      Field{"services",
            +[](Value& table, nanobind::bytes services) {
              table.services.assign(services.c_str(), services.size());
            }},
      Field{"files",
            +[](Value& table, std::map<std::string, nanobind::bytes> files) {
              for (const auto& [name, response] : files) {
                table.files.emplace(name, std::string(response.c_str(), response.size()));
              }
            }},
      Field{"symbols", &Value::symbols}, Field{"extensions", &Value::extensions}};
};

template <>
struct ValueClass<rpc::HttpOptions> {
  using Options = rpc::HttpOptions;
  static constexpr auto kModule = "serving.data_plane.requests";
  static constexpr char kName[] = "HttpOptions";
  static constexpr auto kFields = std::tuple{
      Field{"hosts", &Options::hosts},
      Field{"probe_paths", &Options::probe_paths},
      Field{"has_cors", &Options::has_cors},
      Field{"body_bytes_max", &Options::body_bytes_max},
      Field{"reply_bytes_max",
            +[](Options& options, size_t bytes) {
              options.reply_bytes_max = std::min(bytes, base::kMaxReplyBytes);
            }},
      Field{
          "request_seconds_max",
          +[](Options& options, double seconds) { options.request_ns_max = SecondsToNs(seconds); }},
      Field{"connection_count_max", &Options::connection_count_max},
      Field{"certificates", &Options::certificates}};
};

template <>
struct ValueClass<rpc::ServerOptions> {
  using Options = rpc::ServerOptions;
  static constexpr auto kModule = "serving.data_plane.requests";
  static constexpr char kName[] = "GrpcServerOptions";
  static constexpr auto kFields = std::tuple{
      Field{"addresses", &Options::addresses},
      Field{"thread_count", &Options::thread_count},
      Field{"has_accelerator", &Options::has_accelerator},
      Field{"max_thread_count", &Options::max_thread_count},
      Field{"thread_group_count", &Options::thread_group_count},
      Field{"node_cores", &Options::node_cores},
      Field{"binds_threads_to_nodes", &Options::binds_threads_to_nodes},
      Field{"admission", &Options::admission},
      Field{"first_version_wait_seconds",
            +[](Options& options, double seconds) {
              options.first_version_wait_ns = SecondsToNs(seconds);
            }},
      Field{"max_message_bytes",
            +[](Options& options, int64_t bytes) {
              options.max_message_bytes = std::min<int64_t>(bytes, INT32_MAX);
            }},
      Field{"reply_bytes_max",
            +[](Options& options, size_t bytes) {
              options.reply_bytes_max = std::min(bytes, base::kMaxReplyBytes);
            }},
      Field{"budget", &Options::budget},
      Field{"connections_per_address_max",
            +[](Options& options, int64_t count) {
              options.limits.connections_per_address_max = count;
            }},
      Field{"channel_arguments", &Options::channel_arguments},
      Field{
          "request_seconds_max",
          +[](Options& options, double seconds) { options.request_ns_max = SecondsToNs(seconds); }},
      Field{"rare_methods", &Options::rare_methods},
      Field{"rare_message_bytes_max", &Options::rare_message_bytes_max},
      Field{"request_statistics",
            +[](Options& options, const PyRequestStatistics* statistics) {
              if (statistics != nullptr) options.statistics = statistics->statistics();
            }},
      Field{"spans", &Options::spans},
      Field{"certificates", &Options::certificates},
      Field{"reply_compression",
            +[](Options& options, Named<rpc::ReplyCompression> compression) {
              options.reply_compression = compression.value;
            }},
      Field{"has_tensor_content",
            +[](Options& options, bool has_tensor_content) {
              options.tensor_encoding = has_tensor_content ? tensor::TensorEncoding::kTensorContent
                                                           : tensor::TensorEncoding::kTypedFields;
            }},
      Field{"serves_session_run", &Options::serves_session_run},
      Field{"reflection",
            +[](Options& options, std::optional<rpc::ReflectionTable> table) {
              if (table) {
                options.reflection =
                    std::make_shared<const rpc::ReflectionTable>(std::move(*table));
              }
            }},
      Field{"http", &Options::http}};
};

}  // namespace millpond::python
