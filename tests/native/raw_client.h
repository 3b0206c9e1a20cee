#pragma once

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/client_unary_call.h>
#include <grpcpp/impl/codegen/rpc_method.h>
#include <grpcpp/impl/codegen/sync_stream.h>

#include <future>
#include <memory>
#include <string>

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

// A gRPC client that says what generated code says, in bytes.
class RawClient {
 public:
  struct Reply {
    grpc::Status status;
    std::string bytes;

    grpc::StatusCode code() const { return status.error_code(); }
  };

  // Connections of its own: another client's state does not matter.
  explicit RawClient(const std::string& target) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetMaxReceiveMessageSize(-1);
    channel_ = grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
  }
  explicit RawClient(int port) : RawClient("127.0.0.1:" + std::to_string(port)) {}

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
                           grpc::ClientContext* context) const {
    auto call = std::make_shared<BegunCall>();
    call->request = ToByteBuffer(request);
    std::future<Reply> reply = call->reply.get_future();
    const auto on_reply = [call](const grpc::Status& status) {
      call->reply.set_value({status, ToString(call->response)});
    };
    grpc::GenericStub(channel_).UnaryCall(context != nullptr ? context : &call->context, path, {},
                                          &call->request, &call->response, on_reply);
    return reply;
  }
  std::future<Reply> Begin(const char* path, const std::string& request) const {
    return Begin(path, request, nullptr);
  }

  using Stream = std::unique_ptr<grpc::ClientReader<grpc::ByteBuffer>>;
  Stream Watch(const char* path, const std::string& request, grpc::ClientContext* context) const {
    const grpc::internal::RpcMethod method(path, grpc::internal::RpcMethod::SERVER_STREAMING);
    return Stream(grpc::internal::ClientReaderFactory<grpc::ByteBuffer>::Create(
        channel_.get(), method, context, ToByteBuffer(request)));
  }

 private:
  struct BegunCall {
    grpc::ClientContext context;
    grpc::ByteBuffer request;
    grpc::ByteBuffer response;
    std::promise<Reply> reply;
  };

  std::shared_ptr<grpc::Channel> channel_;
};

}  // namespace millpond::testing
