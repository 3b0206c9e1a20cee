#include "native/rpc/server.h"

#include <nghttp2/nghttp2.h>
#include <openssl/crypto.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "native/base/clock.h"
#include "native/base/thread_cores.h"
#include "native/rpc/group_plan.h"
#include "native/rpc/health_service.h"
#include "native/rpc/http_stream.h"
#include "native/rpc/infer_service.h"
#include "native/rpc/network.h"
#include "native/rpc/predict_service.h"
#include "native/rpc/request_threads.h"
#include "native/rpc/session_service.h"
#include "native/rpc/tf_example_services.h"

namespace millpond::rpc {
namespace {

// Requests run on at most this many threads for each core, and further requests wait. TensorFlow
// Serving has the same default.
constexpr size_t kMaxThreadsPerCore = 4;

// The longest message of a rare method for which the options have no limit. It is above any honest
// question, and as many messages as may wait (RareCallQueue) take 1 GiB together.
constexpr int64_t kRareMessageBytesMax = int64_t{4} << 20U;

// A probe's message is the name of a service. A Watch keeps it.
constexpr int64_t kCheckMessageBytesMax = 4096;

// A question of reflection is the name of a symbol, or of a file.
constexpr int64_t kReflectionMessageBytesMax = int64_t{64} << 10U;

// The pause between two looks at whether all calls have ended. The end of a drain is not urgent.
constexpr int64_t kEndPollNs = 1'000'000;

// A stop waits this long for clients to leave after their last answer: longer than a round trip to
// any client, with the part of the answer that its socket still holds. A client that has vanished
// costs the stop all of it.
constexpr int64_t kQuietWaitNs = 1'000'000'000;

// A stop waits this long for clients that are just connecting, and then closes those that have not
// finished.
constexpr int64_t kConnectingNs = 300'000'000;
constexpr int64_t kConnectingPollNs = 10'000'000;

// A stop waits for a request that is arriving unless it pauses for longer than this.
constexpr int64_t kArrivalPauseNs = 300'000'000;

// Counts the cores that the process may use, and not the machine's: a server that may run on two of
// 64 cores has threads for two.
size_t CoreCount() { return std::max<size_t>(1, base::AllowedCores().size()); }

// Hands the calls of one rare method over to the control plane.
class RareHandler final : public CallHandler {
 public:
  RareHandler(RareCallQueue* queue, std::shared_ptr<metrics::MethodRecorder> requests)
      : queue_(queue), requests_(std::move(requests)) {}

  void Handle(Call* call) override {
    base::StatusOr<base::ChargedText> request = call->TakeRequest();
    if (!request.ok()) {
      RecordRefusal(*call, request.status().code());
      return call->Fail(request.status());
    }
    queue_->Put(std::make_unique<RareCall>(call, std::move(request.value()), requests_));
  }

  void RecordRefusal(const Call& call, base::Code code) const override {
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
  return options.max_thread_count > 0 ? options.max_thread_count : kMaxThreadsPerCore * CoreCount();
}

size_t ThreadCount(const ServerOptions& options) {
  if (options.thread_count > 0) return options.thread_count;
  const size_t group_count = std::max(options.thread_group_count, 1);
  return std::min(std::max(CoreCount(), group_count), MaxThreadCount(options));
}

std::vector<GroupPlan> GroupsOf(const ServerOptions& options) {
  const std::vector<std::vector<int>> one_node = {base::AllowedCores()};
  std::vector<GroupPlan> groups =
      PlanGroups(options.node_cores.empty() ? one_node : options.node_cores, ThreadCount(options),
                 std::max(options.thread_group_count, 0));
  if (options.has_accelerator) AddSpareThreads(MaxThreadCount(options), &groups);
  return groups;
}

CallLimits CallLimitsOf(const ServerOptions& options,
                        std::shared_ptr<servable::Admission> admission,
                        const servable::BatchRegistry* batches,
                        const std::atomic<bool>* is_cut_short) {
  CallLimits limits;
  limits.admission = std::move(admission);
  limits.batches = batches;
  limits.budget = options.budget;
  limits.reply_bytes_max = options.reply_bytes_max;
  limits.message_bytes_max = options.max_message_bytes;
  limits.first_version_wait_ns = options.first_version_wait_ns;
  limits.request_ns_max = options.request_ns_max;
  limits.reply_compression = options.reply_compression;
  limits.is_cut_short = is_cut_short;
  return limits;
}

// HTTP/1 has no pings. A client keeps an idle connection for up to 60 s, as balancers and
// Prometheus do, and closes it first: a request that was sent as the server closed would be lost.
WireLimits HttpWireLimits(const HttpOptions& options) {
  WireLimits limits;
  limits.connection_count_max = options.connection_count_max;
  // Enough for every head that Http1Limits accept: 32 KiB of text, and 32 counted bytes for each of
  // 200 headers.
  limits.header_list_bytes_max = 40'960;
  limits.handshake_ns = 10 * WireLimits::kSecondNs;
  limits.pause_ns = 30 * WireLimits::kSecondNs;
  limits.keepalive_ns = 0;
  limits.idle_ns = 75 * WireLimits::kSecondNs;
  return limits;
}

}  // namespace

WireLimits WithChannelArguments(WireLimits limits, const ChannelArguments& arguments) {
  constexpr int64_t kMillisecondNs = 1'000'000;
  const auto with = [&](const char* name, auto&& use) {
    const auto found = arguments.find(name);
    if (found == arguments.end()) return;
    const int* const value = std::get_if<int>(&found->second);
    if (value != nullptr && *value >= 0) use(*value);
  };
  const auto milliseconds = [&](const char* name, int64_t* ns) {
    with(name, [ns](int value) { *ns = value * kMillisecondNs; });
  };
  // gRPC's INT_MAX is "never".
  const auto milliseconds_or_never = [&](const char* name, int64_t* ns) {
    with(name, [ns](int value) { *ns = value == INT32_MAX ? 0 : value * kMillisecondNs; });
  };
  with("grpc.max_concurrent_streams", [&](int value) {
    if (value > 0) limits.streams_per_connection = static_cast<uint32_t>(value);
  });
  with("grpc.max_metadata_size", [&](int value) {
    if (value > 0) limits.header_list_bytes_max = static_cast<size_t>(value);
  });
  milliseconds_or_never("grpc.keepalive_time_ms", &limits.keepalive_ns);
  milliseconds("grpc.keepalive_timeout_ms", &limits.keepalive_timeout_ns);
  milliseconds_or_never("grpc.max_connection_idle_ms", &limits.idle_ns);
  milliseconds_or_never("grpc.max_connection_age_ms", &limits.age_ns);
  milliseconds("grpc.http2.min_ping_interval_without_data_ms", &limits.ping_interval_ns);
  return limits;
}

// HTTP beside gRPC. Its requests run on the same threads.
struct HttpPart {
  HttpPart(const ServerOptions& options, const ModelMethodParts& parts,
           std::shared_ptr<servable::Admission> admission)
      : runs(options.make_http_routes(parts, &documents, *options.http)),
        service(*options.http, runs.get()) {
    shared->limits = HttpWireLimits(*options.http);
    shared->calls =
        CallLimitsOf(options, std::move(admission), &parts.map->batches(), &shared->is_cut_short);
    shared->calls.reply_bytes_max = options.http->reply_bytes_max;
    shared->calls.request_ns_max = options.http->request_ns_max;
    shared->calls.request_flag = "--rest_api_timeout_in_ms";
  }

  HttpDocuments documents;
  const std::unique_ptr<HttpRoutes> runs;
  HttpService service;
  const HttpProtocol protocol{&service, Http1Limits()};
  const std::shared_ptr<ServerShared> shared = std::make_shared<ServerShared>();
};

struct Server::State {
  State(servable::ServingMap* map, ServerOptions server_options)
      : options(std::move(server_options)),
        statistics(StatisticsOf(options)),
        admission(AdmissionOf(options)),
        parts{map, statistics.get(), options.spans.get()} {
    if (options.http) http.emplace(options, parts, admission);
    shared->limits = WithRequestTime(
        WithChannelArguments(options.limits, options.channel_arguments), options.request_ns_max);
    shared->calls = CallLimitsOf(options, admission, &map->batches(), &shared->is_cut_short);
  }

  void MakeThreads();
  void StartThreads();
  void AddMethods();
  void Add(const std::string& path, Method::Handler handler, int64_t message_bytes_max = INT64_MAX);
  bool WaitForLastCall(const ServerShared& whose, int64_t timeout_ns);
  bool WaitForQuiet(const ServerShared& whose, int64_t timeout_ns);
  void AskToGo(const ServerShared& whose, int64_t timeout_ns);
  bool Drain(ServerShared* whose, int64_t drain_ns);
  void EndUnlessNeeded();

  const ServerOptions options;
  std::optional<bool> has_drained;  // set by the first Shutdown
  bool has_ended = false;
  const std::shared_ptr<metrics::RequestStatistics> statistics;
  const std::shared_ptr<servable::Admission> admission;

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
  std::vector<std::unique_ptr<CallHandler>> rare_handlers;

  const std::shared_ptr<ServerShared> shared = std::make_shared<ServerShared>();
  std::optional<HttpPart> http;  // before the network, whose connections borrow it
  const std::vector<GroupPlan> groups = GroupsOf(options);
  Network network{shared, groups.size()};
  std::optional<RequestThreads> threads;
  // True once `threads` run. A load may ask to pin them before, which does nothing.
  std::atomic<bool> has_started{false};
  bool has_grpc = false;                 // listens for it, until Shutdown is over
  bool has_http = false;                 // the same
  std::optional<bool> has_http_drained;  // set by the first ShutdownHttp
};

void Server::State::Add(const std::string& path, Method::Handler handler,
                        int64_t message_bytes_max) {
  shared->methods[path] = {path, handler, message_bytes_max};
}

void Server::State::AddMethods() {
  Add("/tensorflow.serving.PredictionService/Predict", &predict);
  Add("/inference.GRPCInferenceService/ModelInfer", &infer);
  Add("/tensorflow.serving.PredictionService/GetModelMetadata", &metadata);
  Add("/tensorflow.serving.PredictionService/Classify", &classify);
  Add("/tensorflow.serving.PredictionService/Regress", &regress);
  Add("/tensorflow.serving.PredictionService/MultiInference", &multi_inference);
  Add("/tensorflow.serving.SessionService/SessionRun", &session_run);
  Add("/grpc.health.v1.Health/Check", health.check(), kCheckMessageBytesMax);
  Add("/grpc.health.v1.Health/Watch", health.watch(), kCheckMessageBytesMax);
  for (const std::string& path : options.rare_methods) {
    rare_handlers.push_back(std::make_unique<RareHandler>(
        &rare_calls, statistics->MethodWithoutModel(MethodNameOf(path))));
    const auto bytes_max = options.rare_message_bytes_max.find(path);
    const bool has_limit = bytes_max != options.rare_message_bytes_max.end();
    Add(path, rare_handlers.back().get(), has_limit ? bytes_max->second : kRareMessageBytesMax);
  }
  if (options.reflection == nullptr) return;
  reflection.emplace(*options.reflection);
  for (const char* const edition : {"v1", "v1alpha"}) {
    Add(std::string("/grpc.reflection.") + edition + ".ServerReflection/ServerReflectionInfo",
        &*reflection, kReflectionMessageBytesMax);
  }
}

// Called before the network listens, because the first connection needs the threads' queue.
void Server::State::MakeThreads() {
  if (threads) return;
  threads.emplace(&network, parts.map->batches(), groups, MaxThreadCount(options),
                  options.binds_threads_to_nodes);
}

void Server::State::StartThreads() {
  if (has_started) return;
  threads->Start();
  has_started = true;
}

// Waits until the calls of `whose` have ended, and returns false if `timeout_ns` passed first. A
// client that has begun a call and sends nothing is not waited for.
bool Server::State::WaitForLastCall(const ServerShared& whose, int64_t timeout_ns) {
  const int64_t begin_ns = base::MonotonicNs();
  while (whose.call_counts.live_count.load() > 0) {
    const int64_t now_ns = base::MonotonicNs();
    if (whose.call_counts.arrived_count.load() == 0 &&
        !network.IsReceiving(whose, now_ns - kArrivalPauseNs)) {
      return true;
    }
    if (now_ns - begin_ns >= timeout_ns) return false;
    base::SleepNs(kEndPollNs);
  }
  return true;
}

// Waits until all clients have left, and returns false if `timeout_ns` passed first.
bool Server::State::WaitForQuiet(const ServerShared& whose, int64_t timeout_ns) {
  const int64_t begin_ns = base::MonotonicNs();
  while (whose.connection_count.load() > 0) {
    if (base::MonotonicNs() - begin_ns >= timeout_ns) return false;
    base::SleepNs(kEndPollNs);
  }
  return true;
}

// Asks each client to go, and one that is still connecting as soon as it has finished. Waits up to
// `timeout_ns` for the clients that are connecting. The server answers calls meanwhile.
void Server::State::AskToGo(const ServerShared& whose, int64_t timeout_ns) {
  const int64_t begin_ns = base::MonotonicNs();
  network.AskToGo(whose);
  while (!network.IsSettled(whose) && base::MonotonicNs() - begin_ns < timeout_ns) {
    base::SleepNs(kConnectingPollNs);
    network.AskToGo(whose);
  }
}

// Ends the connections of `whose` but for closing them. Returns true if no call was cut short.
bool Server::State::Drain(ServerShared* whose, int64_t drain_ns) {
  const int64_t deadline_ns = base::MonotonicNs() + drain_ns;
  network.StopListening(*whose);
  threads->awaiting()->Release();
  const auto left_ns = [deadline_ns] {
    return std::max<int64_t>(deadline_ns - base::MonotonicNs(), 0);
  };
  AskToGo(*whose, std::min(left_ns(), kConnectingNs));
  // A client begins calls until it has read the request to go. Its connection ends once its calls
  // are answered and it has nothing more to send.
  WaitForQuiet(*whose, std::min(left_ns(), kQuietWaitNs));
  // Later streams are refused, so that no call begins once the last one has ended.
  network.RefuseNewStreams(*whose);
  const bool are_over = WaitForLastCall(*whose, left_ns());
  whose->is_cut_short = !are_over;
  if (are_over && drain_ns > 0) WaitForQuiet(*whose, kQuietWaitNs);
  return are_over;
}

// Ends the threads once no call of any protocol is left. Gives up on a thread whose run does not
// end in time.
void Server::State::EndUnlessNeeded() {
  if (has_grpc || has_http) return;
  // The control plane may keep a rare call for longer than the server lives.
  (void)WaitForLastCall(*shared, kLastCallNs);
  if (http) (void)WaitForLastCall(*http->shared, kLastCallNs);
  threads->Stop();
  has_ended = threads->Join(kCutShortNs);
}

Server::Server(servable::ServingMap* map, ServerOptions options)
    : state_(std::make_unique<State>(map, std::move(options))) {}

Server::~Server() {
  Shutdown(0);
  ShutdownHttp(0);
  // Threads that still run use the state until the process ends.
  if (!state_->has_ended) (void)state_.release();
}

base::Status Server::Start() {
  if (state_->has_drained || !state_->shared->methods.empty()) {
    return base::FailedPrecondition("the server was started before; make another");
  }
  state_->AddMethods();
  state_->MakeThreads();
  state_->shared->calls.awaiting = state_->threads->awaiting();
  MILLPOND_RETURN_IF_ERROR(
      state_->network.Listen(state_->options.addresses, state_->options.certificates));
  state_->has_grpc = true;
  state_->StartThreads();
  return {};
}

base::Status Server::StartHttp(const std::vector<std::string>& addresses) {
  if (!state_->http || state_->has_http || state_->has_http_drained) {
    return base::FailedPrecondition("the server has no HTTP, or had it before");
  }
  state_->MakeThreads();
  HttpPart& http = *state_->http;
  http.shared->calls.awaiting = state_->threads->awaiting();
  MILLPOND_RETURN_IF_ERROR(state_->network.ListenFor(http.protocol, http.shared, addresses,
                                                     state_->options.http->certificates));
  state_->has_http = true;
  state_->StartThreads();
  return {};
}

int Server::port() const { return state_->network.port(); }

int Server::http_port() const { return state_->network.other_port(); }

std::unique_ptr<RareCall> Server::TakeRareCall(int64_t timeout_ns) {
  return state_->rare_calls.Take(timeout_ns);
}

bool Server::HasRareCallsToCome() const { return !state_->rare_calls.is_closed(); }

std::unique_ptr<RareCall> Server::TakeHttpCall(bool is_probe, int64_t timeout_ns) {
  HttpService& service = state_->http->service;
  return (is_probe ? service.probes() : service.pages())->Take(timeout_ns);
}

bool Server::HasHttpCallsToCome() const { return !state_->http->service.probes()->is_closed(); }

HttpDocuments* Server::http_documents() {
  return state_->http ? &state_->http->documents : nullptr;
}

void Server::SetHealth(const std::string& service, bool is_serving) {
  state_->health.Set(service, is_serving);
}

void Server::RemoveHealth(const std::string& service) { state_->health.Remove(service); }

bool Server::PinRequestThreads(bool is_pinned) {
  return state_->has_started && state_->threads->PinToCores(is_pinned);
}

bool Server::Shutdown(int64_t drain_ns) {
  if (state_->has_drained) return *state_->has_drained;
  state_->has_drained = true;
  state_->health.Close();
  if (state_->reflection) state_->reflection->Close();
  if (!state_->has_started) {
    state_->has_ended = true;
    return true;
  }
  if (!state_->has_grpc) return true;
  state_->has_drained = state_->Drain(state_->shared.get(), drain_ns);
  state_->rare_calls.Close();
  state_->network.CloseAll(*state_->shared);
  state_->has_grpc = false;
  state_->EndUnlessNeeded();
  return *state_->has_drained;
}

void Server::AskHttpToGo() {
  if (!state_->has_http) return;
  state_->http->service.SetDraining();
  state_->threads->awaiting()->Release();
}

bool Server::ShutdownHttp(int64_t drain_ns) {
  if (state_->has_http_drained) return *state_->has_http_drained;
  state_->has_http_drained = true;
  if (!state_->has_http) return true;
  AskHttpToGo();
  HttpPart& http = *state_->http;
  state_->has_http_drained = state_->Drain(http.shared.get(), drain_ns);
  http.service.probes()->Close();
  http.service.pages()->Close();
  state_->network.CloseAll(*http.shared);
  state_->has_http = false;
  state_->EndUnlessNeeded();
  return *state_->has_http_drained;
}

int64_t Server::connection_count() const { return state_->network.connection_count(); }

std::map<std::string, int64_t> Server::LimitCountsByName() const {
  std::map<std::string, int64_t> counts = state_->shared->limit_counts.ByName();
  if (state_->http) {
    for (const auto& [name, count] : state_->http->shared->limit_counts.ByName()) {
      counts[name] += count;
    }
  }
  counts["queue_delay"] = state_->has_started ? state_->threads->refused_count() : 0;
  return counts;
}

std::string WireVersions() {
  return std::string("nghttp2 ") + nghttp2_version(0)->version_str + ", " +
         OpenSSL_version(OPENSSL_VERSION);
}

}  // namespace millpond::rpc
