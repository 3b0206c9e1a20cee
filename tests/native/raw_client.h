#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/async_unary_call.h>
#include <grpcpp/impl/codegen/client_unary_call.h>
#include <grpcpp/impl/codegen/rpc_method.h>
#include <grpcpp/impl/codegen/sync_stream.h>

#include <future>
#include <memory>
#include <string>
#include <thread>

namespace millpond::testing {

inline grpc::ByteBuffer ToByteBuffer(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return {&slice, 1};
}

inline std::string ToString(const grpc::ByteBuffer& buffer) {
  grpc::Slice slice;
  if (!buffer.Valid() || !buffer.DumpToSingleSlice(&slice).ok()) return "";
  return {reinterpret_cast<const char*>(slice.begin()), slice.size()};
}

// A gRPC client that sends the same bytes as generated code.
class RawClient {
 public:
  struct Reply {
    grpc::Status status;
    std::string bytes;

    grpc::StatusCode code() const { return status.error_code(); }
  };

  // The client has its own connections: the state of other clients does not matter.
  explicit RawClient(const std::string& target,
                     const std::shared_ptr<grpc::ChannelCredentials>& credentials =
                         grpc::InsecureChannelCredentials(),
                     grpc::ChannelArguments arguments = {}) {
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetMaxReceiveMessageSize(-1);
    channel_ = grpc::CreateCustomChannel(target, credentials, arguments);
    thread_ = std::thread([this] { TakeReplies(); });
  }
  explicit RawClient(int port) : RawClient("127.0.0.1:" + std::to_string(port)) {}
  // Waits for the replies of all calls that were begun.
  ~RawClient() {
    queue_.Shutdown();
    thread_.join();
  }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  Reply Call(const char* path, const std::string& request, grpc::ClientContext* context) const {
    const grpc::internal::RpcMethod method(path, grpc::internal::RpcMethod::NORMAL_RPC);
    grpc::ByteBuffer response;
    Reply reply;
    reply.status = grpc::internal::BlockingUnaryCall(channel_.get(), method, context,
                                                     ToByteBuffer(request), &response);
    reply.bytes = ToString(response);
    return reply;
  }
  Reply Call(const char* path, const std::string& request) const {
    grpc::ClientContext context;
    return Call(path, request, &context);
  }

  // Begins a call without waiting for its reply. Calls of one thread go out in the order in which
  // they were begun.
  std::future<Reply> Begin(const char* path, const std::string& request,
                           grpc::ClientContext* context = nullptr) const {
    auto* const call = new BegunCall;  // freed by TakeReplies
    std::future<Reply> reply = call->reply.get_future();
    const grpc::internal::RpcMethod method(path, grpc::internal::RpcMethod::NORMAL_RPC);
    using Helper = grpc::internal::ClientAsyncResponseReaderHelper;
    call->reader.reset(Helper::Create<grpc::ByteBuffer>(
        channel_.get(), &queue_, method, context != nullptr ? context : &call->context,
        ToByteBuffer(request)));
    call->reader->StartCall();
    call->reader->Finish(&call->response, &call->status, call);
    return reply;
  }

  using Stream = std::unique_ptr<grpc::ClientReader<grpc::ByteBuffer>>;
  Stream Watch(const char* path, const std::string& request, grpc::ClientContext* context) const {
    const grpc::internal::RpcMethod method(path, grpc::internal::RpcMethod::SERVER_STREAMING);
    return Stream(grpc::internal::ClientReaderFactory<grpc::ByteBuffer>::Create(
        channel_.get(), method, context, ToByteBuffer(request)));
  }

  // Begins a call and sends no message.
  using UnsentCall = std::unique_ptr<grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>>;
  UnsentCall BeginWithoutMessage(const char* path, grpc::ClientContext* context) const {
    const grpc::internal::RpcMethod method(path, grpc::internal::RpcMethod::BIDI_STREAMING);
    return UnsentCall(
        grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>::Create(
            channel_.get(), method, context));
  }

 private:
  struct BegunCall {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientAsyncResponseReader<grpc::ByteBuffer>> reader;
    grpc::ByteBuffer response;
    grpc::Status status;
    std::promise<Reply> reply;
  };

  void TakeReplies() {
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) {
      const std::unique_ptr<BegunCall> call(static_cast<BegunCall*>(tag));
      call->reply.set_value({call->status, ToString(call->response)});
    }
  }

  std::shared_ptr<grpc::Channel> channel_;
  mutable grpc::CompletionQueue queue_;
  std::thread thread_;
};

}  // namespace millpond::testing
