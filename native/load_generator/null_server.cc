#include "native/load_generator/null_server.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <chrono>

namespace millpond::load_generator {
namespace {

// One call: it reads the request and writes the reply. It deletes itself when gRPC is done with it.
class NullCall final : public grpc::ServerGenericBidiReactor {
 public:
  explicit NullCall(const grpc::ByteBuffer& reply) : reply_(reply) { StartRead(&request_); }

  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "no request arrived"));
    StartWriteAndFinish(&reply_, grpc::WriteOptions(), grpc::Status::OK);
  }
  void OnDone() override { delete this; }

 private:
  grpc::ByteBuffer request_;
  grpc::ByteBuffer reply_;
};

class NullService final : public grpc::CallbackGenericService {
 public:
  explicit NullService(const std::string& reply) {
    const grpc::Slice slice(reply);
    reply_ = grpc::ByteBuffer(&slice, 1);
  }
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    return new NullCall(reply_);
  }

 private:
  grpc::ByteBuffer reply_;
};

}  // namespace

struct NullServer::State {
  explicit State(const std::string& reply) : service(reply) {}

  NullService service;
  std::unique_ptr<grpc::Server> server;
};

NullServer::NullServer(const std::string& reply) : state_(std::make_unique<State>(reply)) {}

NullServer::~NullServer() {
  if (state_->server != nullptr) state_->server->Shutdown(std::chrono::system_clock::now());
}

base::StatusOr<int> NullServer::Start() {
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterCallbackGenericService(&state_->service);
  builder.SetMaxReceiveMessageSize(-1);
  state_->server = builder.BuildAndStart();
  if (state_->server == nullptr || port == 0) {
    return base::FailedPrecondition("cannot listen on a port of 127.0.0.1");
  }
  return port;
}

}  // namespace millpond::load_generator
