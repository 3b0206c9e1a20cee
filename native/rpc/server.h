#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "native/base/byte_budget.h"
#include "native/base/limits.h"
#include "native/base/status.h"
#include "native/metrics/request_statistics.h"
#include "native/metrics/span_buffer.h"
#include "native/rpc/certificates.h"
#include "native/rpc/http_documents.h"
#include "native/rpc/http_route.h"
#include "native/rpc/http_service.h"
#include "native/rpc/message_encoding.h"
#include "native/rpc/model_method.h"
#include "native/rpc/rare_call_queue.h"
#include "native/rpc/reflection_service.h"
#include "native/rpc/wire_limits.h"
#include "native/servable/admission.h"
#include "native/servable/serving_map.h"
#include "native/tensor/tensor_codec.h"

namespace millpond::rpc {

using ChannelArguments = std::map<std::string, std::variant<int, std::string>>;

struct ServerOptions {
  // `HOST:PORT`, port 0 for a free one, `unix:PATH`, or `fd:N` for a handed-in socket (Network).
  std::vector<std::string> addresses;
  // Threads in the steady state; 0: one a core, and no more than max_thread_count.
  int thread_count = 0;
  // Threads beside these, which serve while some of these wait for an accelerator: as many again,
  // up to max_thread_count.
  bool has_accelerator = false;
  // Threads that run requests at a time; 0: four a core. At least thread_count.
  int max_thread_count = 0;
  // Groups of threads; 0: as many as the cores need (PlanGroups). At most thread_count; if that is
  // 0, there is a thread for each group at least.
  int thread_group_count = 0;
  // The cores that the process may use, of each NUMA node. Empty: all are of one node.
  std::vector<std::vector<int>> node_cores;
  bool binds_threads_to_nodes = false;  // each thread stays on the cores of one node
  // Decides which requests come in. If it is null, the server makes one of its own.
  std::shared_ptr<servable::Admission> admission;
  // A request waits for so long for the first version of its model.
  int64_t first_version_wait_ns = 0;
  int64_t max_message_bytes = INT32_MAX;  // of a request
  size_t reply_bytes_max = base::kMaxReplyBytes;
  // Counts the bytes under way, together with those over HTTP; null: they are not counted.
  std::shared_ptr<base::ByteBudget> budget;
  WireLimits limits;
  // gRPC's channel arguments, by name, like "grpc.keepalive_time_ms". They replace `limits`; see
  // WithChannelArguments.
  ChannelArguments channel_arguments;
  // The deadline of a request to a model that comes without one; 0: none.
  int64_t request_ns_max = 0;
  // Full names of methods that TakeRareCall brings to the control plane.
  std::vector<std::string> rare_methods;
  // The largest message of a rare method, by its full name. Others have 4 MiB.
  std::map<std::string, int64_t> rare_message_bytes_max;
  // Counts the requests that reach no version and those of rare methods. If it is null, the server
  // makes one of its own.
  std::shared_ptr<metrics::RequestStatistics> statistics;
  // Keeps the spans of requests whose trace is sampled; null: nothing is traced.
  std::shared_ptr<metrics::SpanBuffer> spans;
  // TLS on the TCP addresses; null: none. UNIX sockets are plain, the file system guards them.
  std::shared_ptr<const ServerCertificates> certificates;
  ReplyCompression reply_compression = ReplyCompression::kLikeRequest;
  // The encoding of the tensors in Predict's replies.
  tensor::TensorEncoding tensor_encoding = tensor::TensorEncoding::kTypedFields;
  // Clients may run any part of a graph; false: SessionRun is UNIMPLEMENTED.
  bool serves_session_run = false;
  // The services that reflection describes; null: the server has no reflection.
  std::shared_ptr<const ReflectionTable> reflection;
  // Nothing: the server has no HTTP.
  std::optional<HttpOptions> http;
  // Makes what answers requests to models over HTTP. Borrows what `parts` borrows, and the
  // documents.
  std::function<std::unique_ptr<HttpRoutes>(
      const ModelMethodParts& parts, const HttpDocuments* documents, const HttpOptions& options)>
      make_http_routes;
};

// The gRPC server: the network, the threads and the methods.
//
// Thread: the control plane's, one at a time. Any, at once: TakeRareCall, HasRareCallsToCome,
// TakeHttpCall, HasHttpCallsToCome, http_documents, PinRequestThreads, connection_count,
// LimitCountsByName. Lifetime: the serving map outlives it.
class Server {
 public:
  Server(servable::ServingMap* map, ServerOptions options);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Listens for gRPC, and serves. UNAVAILABLE if an address cannot be bound. Once.
  base::Status Start();
  // The same for HTTP at `addresses`, which are as ServerOptions::addresses, before or after. Once.
  base::Status StartHttp(const std::vector<std::string>& addresses);

  // The TCP port of the first address over TCP; 0 without such an address.
  int port() const;
  // The same for HTTP.
  int http_port() const;

  std::unique_ptr<RareCall> TakeRareCall(int64_t timeout_ns);
  // The requests over HTTP that the control plane answers: probes, or all others.
  std::unique_ptr<RareCall> TakeHttpCall(bool is_probe, int64_t timeout_ns);
  bool HasHttpCallsToCome() const;
  // The answers to GET requests; null without HTTP.
  HttpDocuments* http_documents();
  // False once Shutdown has refused what rare calls were left: TakeRareCall then returns at once.
  bool HasRareCallsToCome() const;
  void SetHealth(const std::string& service, bool is_serving);
  void RemoveHealth(const std::string& service);

  // See RequestThreads::PinToCores; false before Start too. Any thread, until Shutdown.
  bool PinRequestThreads(bool is_pinned);

  // The open connections.
  int64_t connection_count() const;
  // The number of times that clients reached each limit, by name. "queue_delay" counts the requests
  // that would have waited too long (RunQueue).
  std::map<std::string, int64_t> LimitCountsByName() const;

  // Takes no new call and lets the calls that have arrived finish, also those that wait. After
  // `drain_ns`, cancels the rest. Ends all threads. True if no call was cut short. A second call
  // returns the same. Waits for calls, and not for clients: a connection that is still open when
  // the last call has ended is closed a second later.
  //
  // A kernel is not interrupted. If a kernel still runs kLastCallNs and kCutShortNs after the
  // cancellation, its thread goes on, and the serving map must outlive it: end the process.
  bool Shutdown(int64_t drain_ns);
  // From now on, answers over HTTP ask their clients to close, and requests wait for no version.
  void AskHttpToGo();
  // The same as Shutdown for HTTP, after it: until then probes learn that the server stops.
  bool ShutdownHttp(int64_t drain_ns);

 private:
  // The time that cancelled calls have to end while the threads still serve: most end within one
  // kernel.
  static constexpr int64_t kLastCallNs = 175'000'000;
  // From then to giving up on a request: above any kernel of a model that is served with a tail in
  // mind.
  static constexpr int64_t kCutShortNs = 700'000'000;

  struct State;
  std::unique_ptr<State> state_;
};

// Returns `limits` with these of gRPC's channel arguments: max_concurrent_streams,
// keepalive_time_ms, keepalive_timeout_ms, max_connection_idle_ms, max_connection_age_ms,
// max_metadata_size and http2.min_ping_interval_without_data_ms. Others have no effect.
WireLimits WithChannelArguments(WireLimits limits, const ChannelArguments& arguments);

// The versions of the libraries that speak to clients, like "nghttp2 1.52.0, OpenSSL 3.0.19".
std::string WireVersions();

}  // namespace millpond::rpc
