#pragma once

#include <memory>
#include <string>
#include <utility>

#include "native/rpc/runnable_call.h"

namespace millpond::testing {

// A handler of requests to models that answers each in one step, in its turn, without a run.
class WholeAnswers : public rpc::ModelHandler {
 public:
  std::unique_ptr<servable::WaitingRequest> MakeRequest(
      std::shared_ptr<rpc::RunnableCall> call) final {
    return std::make_unique<Request>(this, std::move(call));
  }
  std::string ModelNameOf(const rpc::Call&) const override { return ""; }
  servable::BatchKey BatchKeyOf(const rpc::Call&) const override { return servable::kNoBatchKey; }

 protected:
  virtual void Answer(rpc::RunnableCall* call) = 0;

 private:
  class Request final : public servable::WaitingRequest {
   public:
    Request(WholeAnswers* handler, std::shared_ptr<rpc::RunnableCall> call)
        : handler_(*handler), call_(std::move(call)) {}
    servable::PreparedRun* Prepare() override {
      handler_.Answer(call_.get());
      return nullptr;
    }
    void Finish() override {}

   private:
    WholeAnswers& handler_;
    const std::shared_ptr<rpc::RunnableCall> call_;
  };
};

}  // namespace millpond::testing
