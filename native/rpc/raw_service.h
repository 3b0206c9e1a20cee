#pragma once

#include <grpcpp/impl/codegen/async_stream.h>
#include <grpcpp/impl/codegen/async_unary_call.h>
#include <grpcpp/impl/codegen/byte_buffer.h>
#include <grpcpp/impl/codegen/rpc_service_method.h>
#include <grpcpp/impl/codegen/service_type.h>

#include <deque>
#include <string>

#include "native/rpc/message_encoding.h"

namespace millpond::rpc {

// The methods that the server answers, by full name, bytes in and bytes out. It is what generated
// code makes of a service, without the messages: a registered method brings a call and its message
// in one event, where gRPC's generic service takes two. UnknownMethods
// answers a method that is not here.
//
// Methods are numbered in the order in which they are added, before the server is built.
class RawService final : public grpc::Service {
 public:
  explicit RawService(MessageEncoding encoding = MessageEncoding()) : encoding_(encoding) {}

  // How the messages of its methods are compressed.
  const MessageEncoding& encoding() const { return encoding_; }

  int AddUnaryMethod(const std::string& path) {
    return Add(path, grpc::internal::RpcMethod::NORMAL_RPC);
  }
  int AddServerStreamingMethod(const std::string& path) {
    return Add(path, grpc::internal::RpcMethod::SERVER_STREAMING);
  }
  int AddBidiStreamingMethod(const std::string& path) {
    return Add(path, grpc::internal::RpcMethod::BIDI_STREAMING);
  }

  void RequestUnary(int method, grpc::ServerContext* context, grpc::ByteBuffer* request,
                    grpc::ServerAsyncResponseWriter<grpc::ByteBuffer>* responder,
                    grpc::ServerCompletionQueue* queue, void* tag) {
    RequestAsyncUnary(method, context, request, responder, queue, queue, tag);
  }
  void RequestServerStreaming(int method, grpc::ServerContext* context, grpc::ByteBuffer* request,
                              grpc::ServerAsyncWriter<grpc::ByteBuffer>* writer,
                              grpc::ServerCompletionQueue* queue, void* tag) {
    RequestAsyncServerStreaming(method, context, request, writer, queue, queue, tag);
  }
  void RequestBidiStreaming(
      int method, grpc::ServerContext* context,
      grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>* stream,
      grpc::ServerCompletionQueue* queue, void* tag) {
    RequestAsyncBidiStreaming(method, context, stream, queue, queue, tag);
  }

 private:
  int Add(const std::string& path, grpc::internal::RpcMethod::RpcType type) {
    paths_.push_back(path);
    AddMethod(new grpc::internal::RpcServiceMethod(paths_.back().c_str(), type, nullptr));
    MarkMethodAsync(static_cast<int>(paths_.size()) - 1);
    return static_cast<int>(paths_.size()) - 1;
  }

  const MessageEncoding encoding_;
  // A method of gRPC keeps a pointer to its name; a deque does not move what it holds.
  std::deque<std::string> paths_;
};

}  // namespace millpond::rpc
