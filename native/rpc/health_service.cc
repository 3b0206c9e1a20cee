#include "native/rpc/health_service.h"

#include <algorithm>
#include <utility>

#include "native/base/wire_reader.h"
#include "native/base/wire_writer.h"

namespace millpond::rpc {
namespace {

using base::WireReader;
using base::WireTag;
using base::WireType;

constexpr char kCheckedService[] = "grpc.health.v1.HealthCheckRequest";
constexpr uint32_t kRequestService = 1;
constexpr uint32_t kResponseStatus = 1;

base::Status DecodeService(WireReader proto, std::string* service) {
  WireTag tag;
  while (!proto.AtEnd()) {
    const bool parses = proto.ReadTag(&tag) &&
                        (tag.field == kRequestService && tag.type == WireType::kLengthDelimited
                             ? proto.ReadString(service)
                             : proto.SkipField(tag));
    if (!parses) {
      return base::InvalidArgument(std::string("the message's bytes are no ") + kCheckedService);
    }
  }
  return {};
}

std::string EncodeStatus(HealthStatus status) {
  const auto number = static_cast<uint64_t>(status);
  std::string bytes(base::TagBytes(kResponseStatus) + base::VarintBytes(number), '\0');
  base::WireWriter writer(bytes.data());
  writer.VarintField(kResponseStatus, number);
  return bytes;
}

base::Status ShuttingDown() { return {base::Code::kUnavailable, "the server is shutting down"}; }

// Ended watchers are dropped when the list has twice the size that it had after the last drop, and
// at least this size.
constexpr size_t kWatchersMin = 16;

}  // namespace

HealthStatus HealthService::StatusOf(const std::string& service) const {
  const auto status = statuses_.find(service);
  return status == statuses_.end() ? HealthStatus::kServiceUnknown : status->second;
}

void HealthService::Notify(const std::string& service) {
  for (Watcher& watcher : watchers_) {
    const HealthStatus status = StatusOf(service);
    if (watcher.service != service || watcher.written == status) continue;
    watcher.written = status;
    watcher.call->Send(EncodeStatus(status));
  }
}

void HealthService::DropEndedWatchers() {
  if (watchers_.size() < std::max(2 * watchers_after_drop_, kWatchersMin)) return;
  const auto has_ended = [](const Watcher& watcher) { return watcher.call->is_over(); };
  watchers_.erase(std::remove_if(watchers_.begin(), watchers_.end(), has_ended), watchers_.end());
  watchers_after_drop_ = watchers_.size();
}

void HealthService::Set(const std::string& service, bool is_serving) {
  const std::lock_guard<std::mutex> lock(mutex_);
  statuses_[service] = is_serving ? HealthStatus::kServing : HealthStatus::kNotServing;
  Notify(service);
}

void HealthService::Remove(const std::string& service) {
  const std::lock_guard<std::mutex> lock(mutex_);
  statuses_.erase(service);
  Notify(service);
}

void HealthService::Close() {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_closed_ = true;
  for (const Watcher& watcher : watchers_) watcher.call->Finish(ShuttingDown());
  watchers_.clear();
}

void HealthService::HandleCheck(Call* call) {
  std::string service;
  const base::Status decoded = DecodeService(call->request(), &service);
  if (!decoded.ok()) return call->Fail(decoded);
  HealthStatus status = HealthStatus::kUnknown;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    status = StatusOf(service);
  }
  if (status != HealthStatus::kServiceUnknown) return call->Reply(EncodeStatus(status));
  call->Fail(base::NotFound("unknown service '" + service +
                            "'; ask for \"\" (the server) or a model's name"));
}

void HealthService::HandleWatch(Call* call) {
  Watcher watcher;
  const base::Status decoded = DecodeService(call->request(), &watcher.service);
  if (!decoded.ok()) return call->Finish(decoded);
  const std::lock_guard<std::mutex> lock(mutex_);
  watcher.call = call->shared_from_this();
  watcher.written = StatusOf(watcher.service);
  call->Send(EncodeStatus(watcher.written));
  if (is_closed_) return call->Finish(ShuttingDown());
  DropEndedWatchers();
  watchers_.push_back(std::move(watcher));
}

}  // namespace millpond::rpc
