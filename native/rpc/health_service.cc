#include "native/rpc/health_service.h"

#include <utility>

#include "native/base/no_memory.h"
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

}  // namespace

// A Watch under way. Its call owns it, so it goes with its stream; it leaves the service's set
// then. Its memory counts in the server's budget.
class HealthService::Watcher {
 public:
  // Null if no memory is left for it.
  static std::shared_ptr<Watcher> Make(const std::shared_ptr<State>& state, std::string service,
                                       Call* call) {
    base::ByteBudget::Share charge(call->run_context().budget, base::ByteBudget::Use::kCall);
    // Doubled for its place in the set and the block of shared_ptr, which take less than the
    // watcher itself.
    if (!charge.Resize(static_cast<int64_t>(2 * sizeof(Watcher) + service.size()))) return nullptr;
    return std::make_shared<Watcher>(state, std::move(service), call, std::move(charge));
  }

  Watcher(std::shared_ptr<State> state, std::string service, Call* call,
          base::ByteBudget::Share charge)
      : state_(std::move(state)),
        service_(std::move(service)),
        call_(call->shared_from_this()),
        charge_(std::move(charge)) {}
  ~Watcher() {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->watchers.erase(this);
  }
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  const std::string& service() const { return service_; }
  // Null if the call is about to end.
  std::shared_ptr<Call> call() const { return call_.lock(); }

  // Sends the status if it is not the last one sent, and the end if the service is closed. `call`
  // is the watcher's.
  void Write(Call* call) {
    const std::lock_guard<std::mutex> lock(write_mutex_);
    HealthStatus status = HealthStatus::kUnknown;
    bool is_closed = false;
    {
      const std::lock_guard<std::mutex> state_lock(state_->mutex);
      status = state_->StatusOf(service_);
      is_closed = state_->is_closed;
    }
    if (std::exchange(written_, status) != status) call->Send(EncodeStatus(status));
    if (is_closed) call->Finish(ShuttingDown());
  }

 private:
  const std::shared_ptr<State> state_;
  const std::string service_;
  const std::weak_ptr<Call> call_;
  const base::ByteBudget::Share charge_;
  std::mutex write_mutex_;  // held while it sends, so that the last status is also sent last
  HealthStatus written_ = HealthStatus::kUnknown;
};

HealthStatus HealthService::State::StatusOf(const std::string& service) const {
  const auto status = statuses.find(service);
  return status == statuses.end() ? HealthStatus::kServiceUnknown : status->second;
}

std::vector<HealthService::Watching> HealthService::State::WatchersOf(
    const std::string* service) const {
  std::vector<Watching> found;
  for (Watcher* const watcher : watchers) {
    if (service != nullptr && watcher->service() != *service) continue;
    if (std::shared_ptr<Call> call = watcher->call()) found.emplace_back(std::move(call), watcher);
  }
  return found;
}

void HealthService::Set(const std::string& service, bool is_serving) {
  std::vector<Watching> watching;
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->statuses[service] = is_serving ? HealthStatus::kServing : HealthStatus::kNotServing;
    watching = state_->WatchersOf(&service);
  }
  for (const auto& [call, watcher] : watching) watcher->Write(call.get());
}

void HealthService::Remove(const std::string& service) {
  std::vector<Watching> watching;
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->statuses.erase(service);
    watching = state_->WatchersOf(&service);
  }
  for (const auto& [call, watcher] : watching) watcher->Write(call.get());
}

void HealthService::Close() {
  std::vector<Watching> watching;
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->is_closed = true;
    watching = state_->WatchersOf(nullptr);
  }
  for (const auto& [call, watcher] : watching) watcher->Write(call.get());
}

void HealthService::HandleCheck(Call* call) {
  std::string service;
  const base::Status decoded = DecodeService(call->request(), &service);
  if (!decoded.ok()) return call->Fail(decoded);
  HealthStatus status = HealthStatus::kUnknown;
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    status = state_->StatusOf(service);
  }
  if (status != HealthStatus::kServiceUnknown) return call->Reply(EncodeStatus(status));
  call->Fail(base::NotFound("unknown service '" + service +
                            "'; ask for \"\" (the server) or a model's name"));
}

void HealthService::HandleWatch(Call* call) {
  std::string service;
  const base::Status decoded = DecodeService(call->request(), &service);
  if (!decoded.ok()) return call->Finish(decoded);
  const auto watcher = Watcher::Make(state_, std::move(service), call);
  if (watcher == nullptr) {
    return call->Finish(base::NoMemoryFor("a watcher", *call->run_context().budget));
  }
  call->Attach(watcher);
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->watchers.insert(watcher.get());
  }
  watcher->Write(call);
}

}  // namespace millpond::rpc
