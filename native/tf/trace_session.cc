#include "native/tf/trace_session.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "native/tf/status.h"
#include "tsl/profiler/lib/profiler_lock.h"
#include "tsl/profiler/lib/profiler_session.h"
#include "tsl/profiler/protobuf/profiler_options.pb.h"
#include "tsl/profiler/protobuf/xplane.pb.h"

namespace millpond::tf {
namespace {

using tensorflow::profiler::XEvent;
using tensorflow::profiler::XLine;
using tensorflow::profiler::XPlane;
using tensorflow::profiler::XSpace;

// Returns TensorFlow's options. A client can choose nothing that would wait, write files or slow
// Python down: start_timestamp_ns, repository_path and python_tracer_level keep TensorFlow's
// defaults or are off.
tensorflow::ProfileOptions OptionsOf(const TraceOptions& options) {
  tensorflow::ProfileOptions result;
  result.set_version(1);
  result.set_device_type(tensorflow::ProfileOptions::CPU);
  result.set_host_tracer_level(static_cast<uint32_t>(options.host_level));
  result.set_device_tracer_level(0);
  result.set_python_tracer_level(0);
  result.set_enable_hlo_proto(false);
  result.set_include_dataset_ops(options.includes_dataset_ops);
  return result;
}

template <typename Function>
void ForEachEvent(const XSpace& space, Function&& function) {
  for (const XPlane& plane : space.planes()) {
    for (const XLine& line : plane.lines()) {
      for (const XEvent& event : line.events()) function(plane, event);
    }
  }
}

int64_t CountEvents(const XSpace& space) {
  int64_t count = 0;
  ForEachEvent(space, [&count](const XPlane&, const XEvent&) { ++count; });
  return count;
}

const std::string& NameOf(const XPlane& plane, const XEvent& event) {
  static const auto* const unnamed = new std::string("?");
  const auto found = plane.event_metadata().find(event.metadata_id());
  return found == plane.event_metadata().end() ? *unnamed : found->second.name();
}

std::vector<EventTotal> TotalsOf(const XSpace& space, size_t count_max) {
  constexpr int64_t kPsPerNs = 1000;
  absl::flat_hash_map<std::string_view, EventTotal> by_name;
  ForEachEvent(space, [&by_name](const XPlane& plane, const XEvent& event) {
    EventTotal& total = by_name[NameOf(plane, event)];
    ++total.count;
    total.total_ns += event.duration_ps() / kPsPerNs;
  });
  std::vector<EventTotal> totals;
  totals.reserve(by_name.size());
  for (auto& [name, total] : by_name) {
    total.name = std::string(name);
    totals.push_back(std::move(total));
  }
  std::sort(totals.begin(), totals.end(), [](const EventTotal& left, const EventTotal& right) {
    return left.total_ns != right.total_ns ? left.total_ns > right.total_ns
                                           : left.name < right.name;
  });
  if (totals.size() > count_max) totals.resize(count_max);
  return totals;
}

base::Status Serialize(const XSpace& space, size_t bytes_max, std::string* bytes) {
  const size_t size = space.ByteSizeLong();
  if (size > bytes_max) {
    return {base::Code::kResourceExhausted,
            "the trace takes " + std::to_string(size) + " bytes, more than the " +
                std::to_string(bytes_max) +
                " of --max_reply_bytes; trace for a shorter time, or with a lower "
                "host_tracer_level"};
  }
  if (!space.SerializeToString(bytes)) return base::Internal("the trace cannot be serialized");
  return {};
}

}  // namespace

TraceSession::TraceSession(std::unique_ptr<tsl::ProfilerSession> session)
    : session_(std::move(session)) {}

TraceSession::~TraceSession() = default;

void TraceSession::Drop() { session_.reset(); }

base::StatusOr<std::unique_ptr<TraceSession>> TraceSession::Start(const TraceOptions& options) {
  const bool is_other_active = tsl::profiler::ProfilerLock::HasActiveSession();
  auto session = tsl::ProfilerSession::Create(OptionsOf(options));
  const absl::Status started = session->Status();
  if (!started.ok() && is_other_active) {
    return base::Status(base::Code::kAlreadyExists,
                        "another trace of this process runs; try again when it has ended");
  }
  MILLPOND_RETURN_IF_TF_ERROR(started, "starting a trace");
  return std::unique_ptr<TraceSession>(new TraceSession(std::move(session)));
}

base::StatusOr<Trace> TraceSession::Collect(const TraceResult& result) {
  if (session_ == nullptr) return base::FailedPrecondition("the trace has ended before");
  XSpace space;
  const absl::Status collected = session_->CollectData(&space);
  session_.reset();
  MILLPOND_RETURN_IF_TF_ERROR(collected, "collecting a trace");
  if (!result.warning.empty()) space.add_warnings(result.warning);
  Trace trace;
  trace.event_count = CountEvents(space);
  if (result.total_count_max > 0) trace.totals = TotalsOf(space, result.total_count_max);
  if (result.has_xspace) {
    MILLPOND_RETURN_IF_ERROR(Serialize(space, result.xspace_bytes_max, &trace.xspace));
  }
  return trace;
}

}  // namespace millpond::tf
