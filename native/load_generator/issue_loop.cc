#include "native/load_generator/issue_loop.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/async_unary_call.h>
#include <grpcpp/impl/codegen/rpc_method.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <string_view>
#include <thread>

#include "native/base/clock.h"

namespace millpond::load_generator {
namespace {

constexpr char kPredict[] = "/tensorflow.serving.PredictionService/Predict";

std::shared_ptr<grpc::ChannelCredentials> MakeCredentials(const ChannelOptions& options) {
  if (options.root_certificates.empty()) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions ssl;
  ssl.pem_root_certs = options.root_certificates;
  return grpc::SslCredentials(ssl);
}

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target,
                                           const ChannelOptions& options) {
  grpc::ChannelArguments arguments;
  // Gives each channel its own connection. Channels of equal arguments would otherwise share one
  // connection.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // Sends each request once. A failed request must count as failed.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetCompressionAlgorithm(options.compression);
  return grpc::CreateCustomChannel(target, MakeCredentials(options), arguments);
}

std::chrono::system_clock::time_point FromNow(int64_t duration_ns) {
  return std::chrono::system_clock::now() + std::chrono::nanoseconds(duration_ns);
}

int64_t ProcessCpuNs() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto ns = [](const timeval& time) {
    return time.tv_sec * int64_t{1'000'000'000} + time.tv_usec * int64_t{1'000};
  };
  return ns(usage.ru_utime) + ns(usage.ru_stime);
}

}  // namespace

// A request in flight. The completion queue owns it between Issue and TakeReplies.
struct IssueLoop::Call {
  int64_t request;
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientAsyncResponseReader<grpc::ByteBuffer>> reader;
  grpc::ByteBuffer reply;
  grpc::Status status;
};

IssueLoop::IssueLoop(const Plan& plan, const std::string& target, const ChannelOptions& options)
    : plan_(plan) {
  for (const std::string& payload : plan.payloads) {
    payloads_.emplace_back(payload.data(), payload.size(), grpc::Slice::STATIC_SLICE);
  }
  for (int64_t i = 0; i < plan.channel_count; ++i) {
    channels_.push_back(MakeChannel(target, options));
  }
}

base::Status IssueLoop::Connect(int64_t timeout_ns) {
  const auto deadline = FromNow(timeout_ns);
  const bool are_connected =
      std::all_of(channels_.begin(), channels_.end(),
                  [&](const auto& channel) { return channel->WaitForConnected(deadline); });
  if (are_connected) return {};
  return {base::Code::kUnavailable,
          "no connection in " + std::to_string(timeout_ns / 1'000'000'000) + " s"};
}

Outcome IssueLoop::Run(int64_t start_ns) {
  Outcome outcome(plan_);
  outcome.started_ns = start_ns;
  const int64_t cpu_before_ns = ProcessCpuNs();
  std::thread replies([&] { TakeReplies(&outcome); });
  int64_t request = 0;
  const auto request_count = static_cast<int64_t>(plan_.offsets_ns.size());
  for (; request < request_count; ++request) {
    if (!SleepUntil(start_ns + plan_.offsets_ns[request]) || !WaitForRoom()) break;
    Issue(request, &outcome);
  }
  outcome.issued_count = request;
  // The queue still returns the calls in flight, at the latest at their deadlines.
  queue_.Shutdown();
  replies.join();
  outcome.cpu_ns = ProcessCpuNs() - cpu_before_ns;
  return outcome;
}

// Sleeps until `instant_ns`. Returns false if the loop is to stop.
bool IssueLoop::SleepUntil(int64_t instant_ns) const {
  while (!is_stopping_) {
    const int64_t left_ns = instant_ns - base::MonotonicNs();
    if (left_ns <= 0) return true;
    base::SleepNs(std::min(left_ns, kStopDelayNs));
  }
  return false;
}

// Waits for room and counts one more request in flight. Returns false if the loop is to stop.
bool IssueLoop::WaitForRoom() {
  if (plan_.in_flight_max == 0) return true;
  std::unique_lock<std::mutex> lock(in_flight_mutex_);
  while (in_flight_count_ >= plan_.in_flight_max) {
    if (is_stopping_) return false;
    has_room_.wait_for(lock, std::chrono::nanoseconds(kStopDelayNs));
  }
  ++in_flight_count_;
  return true;
}

void IssueLoop::MakeRoom() {
  if (plan_.in_flight_max == 0) return;
  const std::lock_guard<std::mutex> lock(in_flight_mutex_);
  --in_flight_count_;
  has_room_.notify_one();
}

void IssueLoop::Issue(int64_t request, Outcome* outcome) {
  static const grpc::internal::RpcMethod method(kPredict, grpc::internal::RpcMethod::NORMAL_RPC);
  using Helper = grpc::internal::ClientAsyncResponseReaderHelper;
  auto* const call = new Call;  // freed by TakeReplies
  call->request = request;
  call->context.set_deadline(FromNow(plan_.deadline_ns));
  const grpc::ByteBuffer message(&payloads_[plan_.payload_of[request]], 1);
  call->reader.reset(Helper::Create<grpc::ByteBuffer>(channels_[request % channels_.size()].get(),
                                                      &queue_, method, &call->context, message));
  call->reader->StartCall();
  call->reader->Finish(&call->reply, &call->status, call);
  // The time is read after the call was sent, so that a stall while sending counts as the
  // generator's lateness.
  outcome->issued_ns[request] = base::MonotonicNs();
}

void IssueLoop::TakeReplies(Outcome* outcome) {
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) {
    const int64_t completed_ns = base::MonotonicNs();
    const std::unique_ptr<Call> call(static_cast<Call*>(tag));
    const int64_t request = call->request;
    const auto code = static_cast<int32_t>(call->status.error_code());
    grpc::Slice slice;
    const bool has_bytes = call->reply.Valid() && call->reply.DumpToSingleSlice(&slice).ok();
    const std::string message = call->status.error_message();
    const std::string_view bytes =
        call->status.ok() && has_bytes
            ? std::string_view(reinterpret_cast<const char*>(slice.begin()), slice.size())
            : std::string_view(message);
    MakeRoom();
    outcome->completed_ns[request] = completed_ns;
    outcome->codes[request] = code;
    outcome->reply_of[request] = outcome->replies.Find(plan_.payload_of[request], code, bytes);
  }
}

}  // namespace millpond::load_generator
