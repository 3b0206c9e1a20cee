#include "native/rpc/server.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "native/base/clock.h"
#include "native/rpc/health_service.h"
#include "native/rpc/infer_service.h"
#include "native/rpc/poller_pool.h"
#include "native/rpc/predict_service.h"
#include "native/rpc/raw_service.h"
#include "native/rpc/server_stop.h"
#include "native/rpc/session_service.h"
#include "native/rpc/tf_example_services.h"
#include "native/rpc/unary_call.h"
#include "native/rpc/unknown_methods.h"

namespace millpond::rpc {
namespace {

// Threads that may serve at a time, for each core: beyond it requests wait. As many as TensorFlow
// Serving's default.
constexpr size_t kMaxPollersPerCore = 4;

// Calls that wait in gRPC for a thread are lost when its server shuts down. So a drain first asks
// for this many: those that wait are brought, the rest ends with the server. Above what piles up
// while a tail is worth talking of; some µs and 2 KiB each.
constexpr int kAdoptedHotCount = 4096;
constexpr int kAdoptedRareCount = 64;

// The longest message of a rare method for which the options have no limit. It is above any honest
// question, and as many messages as may wait (RareCallQueue) take 1 GiB together.
constexpr int64_t kRareMessageBytesMax = int64_t{4} << 20U;

// A probe's message is the name of a service.
constexpr int64_t kCheckMessageBytesMax = int64_t{64} << 10U;

// Between two looks at whether all calls have ended: the end of a drain is not urgent.
constexpr int64_t kEndPollNs = 1'000'000;

// How long a call may hang that gRPC has forgotten as the drain began (ServerStop).
constexpr int64_t kRefusalIntervalNs = 100'000'000;

// How long a client may take to leave once its last call is answered: above a round trip to any,
// and what a socket still holds of its reply. A client that is gone without a word costs this.
constexpr int64_t kGoodbyeNs = 1'000'000'000;

size_t CoreCount() { return std::max(1U, std::thread::hardware_concurrency()); }

// Hands the calls of one rare method over.
class RareHandler final : public UnaryHandler {
 public:
  RareHandler(RareCallQueue* queue, std::shared_ptr<metrics::MethodRecorder> requests)
      : queue_(queue), requests_(std::move(requests)) {}

  void Handle(UnaryCall* call) override {
    base::StatusOr<std::string> request = call->TakeRequest();
    if (!request.ok()) {
      RecordRefusal(*call, request.status().code());
      return call->Fail(request.status());
    }
    queue_->Put(std::make_unique<RareCall>(call, std::move(request.value()), requests_));
  }

  void RecordRefusal(const UnaryCall& call, base::Code code) const override {
    const int64_t now_ns = base::MonotonicNs();
    requests_->Record(code, metrics::PhaseTimes::OfTotal(now_ns - call.received_ns()));
  }

 private:
  RareCallQueue* const queue_;
  const std::shared_ptr<metrics::MethodRecorder> requests_;
};

// Like "GetModelStatus" of "/tensorflow.serving.ModelService/GetModelStatus".
std::string MethodNameOf(const std::string& path) { return path.substr(path.rfind('/') + 1); }

std::shared_ptr<metrics::RequestStatistics> StatisticsOf(const ServerOptions& options) {
  if (options.statistics != nullptr) return options.statistics;
  return std::make_shared<metrics::RequestStatistics>(base::MonotonicNs());
}

std::shared_ptr<servable::Admission> AdmissionOf(const ServerOptions& options) {
  if (options.admission != nullptr) return options.admission;
  return std::make_shared<servable::Admission>();
}

size_t MaxThreadCount(const ServerOptions& options) {
  return options.max_thread_count > 0 ? options.max_thread_count : kMaxPollersPerCore * CoreCount();
}

// What the options do not say of keepalive, in milliseconds. gRPC's own server closes a connection
// whose client pings more often than every five minutes, or at all without a call, and looks after
// two hours whether a client is still there.
const std::pair<const char*, int> kKeepalive[] = {
    // No gRPC client pings more often than that unless it was told to; three pings too early, and
    // gRPC closes the connection.
    {GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10'000},
    // A client that is gone without a word costs its connection for at most so long.
    {GRPC_ARG_KEEPALIVE_TIME_MS, 60'000},
    {GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000},
    // Both also where no call is under way.
    {GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1},
    {GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0},
};

void AddKeepalive(const ServerOptions& options, grpc::ServerBuilder* builder) {
  for (const auto& [name, value] : kKeepalive) {
    if (options.channel_arguments.count(name) == 0) builder->AddChannelArgument(name, value);
  }
}

void AddChannelArguments(const ServerOptions& options, grpc::ServerBuilder* builder) {
  MessageEncoding::Configure(builder);
  // Two servers on one port would each get a part of the requests: the second must fail instead.
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder->SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
  // Replies are bounded as they are made (base::ReplyBuffer).
  builder->SetMaxSendMessageSize(INT32_MAX);
  AddKeepalive(options, builder);
  for (const auto& [name, value] : options.channel_arguments) {
    std::visit([&, &key = name](const auto& v) { builder->AddChannelArgument(key, v); }, value);
  }
}

// A queue is shut down and emptied before it may be destroyed.
void ShutDownUnused(grpc::ServerCompletionQueue* queue) {
  queue->Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue->Next(&tag, &ok)) {
  }
}

bool IsUnixAddress(const std::string& address) { return address.rfind("unix:", 0) == 0; }

}  // namespace

struct Server::State {
  State(servable::ServingMap* map, ServerOptions server_options)
      : options(std::move(server_options)),
        statistics(StatisticsOf(options)),
        admission(AdmissionOf(options)),
        call_limits{admission.get(), options.budget.get(), options.reply_bytes_max,
                    options.first_version_wait_ns},
        parts{map, statistics.get(), options.spans.get()},
        service(MessageEncoding(options.max_message_bytes, options.reply_compression)) {}

  void AddMethods();
  void AddReflection();
  base::Status Listen();
  std::shared_ptr<grpc::ServerCredentials> CredentialsOf(const std::string& address) const;
  void WaitForCalls();
  void AdoptWaitingCalls();
  void StopAsking();
  bool WaitForLastCall(int64_t timeout_ns);
  bool Drain(ServerStop* stop, int64_t deadline_ns);
  void End(int64_t timeout_ns);

  const ServerOptions options;
  ServerPhase phase;
  std::optional<bool> has_drained;  // set by the first Shutdown
  bool has_ended = false;
  const std::shared_ptr<metrics::RequestStatistics> statistics;
  const std::shared_ptr<servable::Admission> admission;
  const CallLimits call_limits;

  const ModelMethodParts parts;

  PredictHandler predict{parts, options.tensor_encoding};
  MetadataHandler metadata{parts};
  ModelInferHandler infer{parts};
  ClassifyHandler classify{parts};
  RegressHandler regress{parts};
  MultiInferenceHandler multi_inference{parts};
  SessionRunHandler session_run{parts, options.serves_session_run};
  HealthService health;
  std::optional<ReflectionService> reflection;
  RareCallQueue rare_calls;
  std::vector<std::unique_ptr<RareHandler>> rare_handlers;

  RawService service;
  std::vector<std::unique_ptr<CallSource>> sources;
  UnknownMethods* unknown_methods = nullptr;  // one of `sources`
  PollerPool::Queues queues;
  std::shared_ptr<grpc::ServerCredentials> tls;  // null: none
  std::unique_ptr<grpc::Server> server;
  std::vector<int> ports;
  std::unique_ptr<PollerPool> pollers;
  // Set when `pollers` run: a load that began before the server listens may want them pinned.
  std::atomic<bool> has_started{false};
};

void Server::State::AddMethods() {
  const auto add = [&](const std::string& path, UnaryHandler* handler,
                       int64_t message_bytes_max = INT64_MAX) {
    sources.push_back(std::make_unique<UnaryMethod>(path, &service, handler, &phase, &call_limits,
                                                    message_bytes_max));
  };
  add("/tensorflow.serving.PredictionService/Predict", &predict);
  add("/inference.GRPCInferenceService/ModelInfer", &infer);
  add("/tensorflow.serving.PredictionService/GetModelMetadata", &metadata);
  add("/tensorflow.serving.PredictionService/Classify", &classify);
  add("/tensorflow.serving.PredictionService/Regress", &regress);
  add("/tensorflow.serving.PredictionService/MultiInference", &multi_inference);
  add("/tensorflow.serving.SessionService/SessionRun", &session_run);
  add("/grpc.health.v1.Health/Check", &health, kCheckMessageBytesMax);
  for (const std::string& path : options.rare_methods) {
    rare_handlers.push_back(std::make_unique<RareHandler>(
        &rare_calls, statistics->MethodWithoutModel(MethodNameOf(path))));
    const auto bytes_max = options.rare_message_bytes_max.find(path);
    const bool has_limit = bytes_max != options.rare_message_bytes_max.end();
    add(path, rare_handlers.back().get(), has_limit ? bytes_max->second : kRareMessageBytesMax);
  }
  sources.push_back(std::make_unique<HealthWatchMethod>(&service, &health, &phase));
  auto unknown = std::make_unique<UnknownMethods>(&phase);
  unknown_methods = unknown.get();
  sources.push_back(std::move(unknown));
  if (options.reflection != nullptr) AddReflection();
}

void Server::State::AddReflection() {
  reflection.emplace(*options.reflection);
  for (const char* const edition : {"v1", "v1alpha"}) {
    sources.push_back(std::make_unique<ReflectionMethod>(
        std::string("/grpc.reflection.") + edition + ".ServerReflection/ServerReflectionInfo",
        &service, &*reflection, &phase));
  }
}

std::shared_ptr<grpc::ServerCredentials> Server::State::CredentialsOf(
    const std::string& address) const {
  if (tls == nullptr || IsUnixAddress(address)) return grpc::InsecureServerCredentials();
  return tls;
}

base::Status Server::State::Listen() {
  grpc::ServerBuilder builder;
  AddChannelArguments(options, &builder);
  if (options.certificates != nullptr) tls = TlsCredentials(options.certificates);
  ports.assign(options.addresses.size(), 0);
  for (size_t i = 0; i < options.addresses.size(); ++i) {
    const std::string& address = options.addresses[i];
    builder.AddListeningPort(address, CredentialsOf(address), &ports[i]);
  }
  builder.RegisterService(&service);
  unknown_methods->RegisterWith(&builder);
  const size_t queue_count = options.completion_queue_count > 0
                                 ? options.completion_queue_count
                                 : std::min(CoreCount(), MaxThreadCount(options));
  for (size_t i = 0; i < queue_count; ++i) {
    queues.push_back(std::make_unique<CallQueue>(builder.AddCompletionQueue()));
  }
  server = builder.BuildAndStart();
  if (server != nullptr) return {};
  // gRPC does not say which address it was.
  std::string addresses;
  for (const std::string& address : options.addresses) addresses += " " + address;
  for (const auto& queue : queues) ShutDownUnused(queue->get());
  queues.clear();
  return {base::Code::kUnavailable,
          "cannot listen on" + addresses +
              ": an address is already in use, or this process may not bind it"};
}

void Server::State::WaitForCalls() {
  for (const auto& source : sources) {
    for (const auto& queue : queues) source->WaitForCall(queue.get());
  }
}

void Server::State::AdoptWaitingCalls() {
  for (const auto& source : sources) {
    const int count = source->IsHot() ? kAdoptedHotCount : kAdoptedRareCount;
    for (int i = 0; i < count; ++i) source->WaitForCall(queues[i % queues.size()].get());
  }
}

void Server::State::StopAsking() {
  phase.is_stopping = true;
  pollers->ReleaseAwaiting();
  const auto is_asking = [](const auto& queue) { return queue->is_asking(); };
  while (std::any_of(queues.begin(), queues.end(), is_asking)) base::SleepNs(kEndPollNs);
}

// False where `timeout_ns` passed first.
bool Server::State::WaitForLastCall(int64_t timeout_ns) {
  const int64_t deadline_ns = base::MonotonicNs() + timeout_ns;
  const auto is_used = [](const auto& queue) { return queue->call_count() > 0; };
  while (std::any_of(queues.begin(), queues.end(), is_used)) {
    if (base::MonotonicNs() >= deadline_ns) return false;
    base::SleepNs(kEndPollNs);
  }
  return true;
}

// False where `deadline_ns` came first.
bool Server::State::Drain(ServerStop* stop, int64_t deadline_ns) {
  int64_t left_ns = 0;
  while ((left_ns = deadline_ns - base::MonotonicNs()) > 0) {
    stop->RefuseForgottenCalls();
    if (WaitForLastCall(std::min(left_ns, kRefusalIntervalNs))) return true;
  }
  return false;
}

// Ends the threads once no call is left; leaves them be where one still is after `timeout_ns`.
void Server::State::End(int64_t timeout_ns) {
  // With the watchdog still there: a run learns of its cancellation from another thread.
  if (!WaitForLastCall(timeout_ns)) return;
  pollers->StopWatching();
  // It may have begun a last wait for a call, which counts by now.
  has_ended = WaitForLastCall(timeout_ns);
  if (!has_ended) return;
  for (const auto& queue : queues) queue->get()->Shutdown();
  pollers->Join();
}

Server::Server(servable::ServingMap* map, ServerOptions options)
    : state_(std::make_unique<State>(map, std::move(options))) {}

Server::~Server() {
  Shutdown(0);
  // Threads that are not over use it until the process ends.
  if (!state_->has_ended) (void)state_.release();
}

base::Status Server::Start() {
  if (state_->server != nullptr || state_->has_drained || !state_->sources.empty()) {
    return base::FailedPrecondition("the server was started before; make another");
  }
  state_->AddMethods();
  MILLPOND_RETURN_IF_ERROR(state_->Listen());
  state_->pollers = std::make_unique<PollerPool>(state_->queues, MaxThreadCount(state_->options));
  state_->WaitForCalls();
  state_->pollers->Start();
  state_->has_started = true;
  return {};
}

int Server::port() const {
  for (size_t i = 0; i < state_->ports.size(); ++i) {
    if (!IsUnixAddress(state_->options.addresses[i])) return state_->ports[i];
  }
  return 0;
}

std::unique_ptr<RareCall> Server::TakeRareCall(int64_t timeout_ns) {
  return state_->rare_calls.Take(timeout_ns);
}

void Server::SetHealth(const std::string& service, bool is_serving) {
  state_->health.Set(service, is_serving);
}

void Server::RemoveHealth(const std::string& service) { state_->health.Remove(service); }

bool Server::PinRequestThreads(bool is_pinned) {
  return state_->has_started && state_->pollers->PinToCores(is_pinned);
}

bool Server::Shutdown(int64_t drain_ns) {
  if (state_->has_drained) return *state_->has_drained;
  state_->has_drained = true;
  state_->health.Close();
  if (state_->reflection) state_->reflection->Close();
  if (state_->server == nullptr) {
    state_->has_ended = true;
    return true;
  }
  const int64_t deadline_ns = base::MonotonicNs() + drain_ns;
  if (drain_ns > 0) state_->AdoptWaitingCalls();
  state_->StopAsking();
  ServerStop stop(state_->server.get());
  // No longer than our calls: gRPC would wait for what keeps a connection open too.
  state_->has_drained = state_->Drain(&stop, deadline_ns);
  // First, or the threads that its end sets free would run what waits.
  state_->phase.is_cut_short = !*state_->has_drained;
  stop.EndConnections(*state_->has_drained ? kGoodbyeNs : 0);
  state_->rare_calls.Close();
  state_->End(kCutShortNs);
  return *state_->has_drained;
}

std::string GrpcVersion() { return grpc::Version(); }

}  // namespace millpond::rpc
