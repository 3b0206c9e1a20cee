#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "native/rpc/stream_call.h"

namespace millpond::testing {

// A connection that carries nothing: it keeps the first answer to each call.
//
// Thread: any.
class FakeCarrier final : public rpc::CallCarrier {
 public:
  const std::string& peer() const override { return peer_; }
  const std::string& local_address() const override { return peer_; }
  std::vector<std::string> ClientNames() override { return {}; }
  bool TakeMessage(int32_t, base::ChargedText*, bool*) override { return false; }
  void Answer(int32_t stream, rpc::CallEnd end) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_closed_ || !answers_.try_emplace(stream, std::move(end)).second) return;
    if (const auto call = calls_[stream].lock()) call->MarkAnswered();
  }
  bool Send(int32_t, std::shared_ptr<rpc::OutMessage>, size_t) override { return true; }
  void WriteAnswers() override { ++write_count_; }

  // From here on the call learns of its answer, and of Close.
  void Add(int32_t stream, const std::shared_ptr<rpc::StreamCall>& call) {
    const std::lock_guard<std::mutex> lock(mutex_);
    calls_[stream] = call;
  }
  // The client is gone.
  void Close(int64_t now_ns) {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_closed_ = true;
    for (const auto& item : calls_) {
      if (const auto call = item.second.lock()) call->Close(now_ns);
    }
  }
  const std::map<int32_t, rpc::CallEnd>& answers() const { return answers_; }
  int write_count() const { return write_count_; }

 private:
  const std::string peer_;
  std::mutex mutex_;
  std::map<int32_t, std::weak_ptr<rpc::StreamCall>> calls_;
  std::map<int32_t, rpc::CallEnd> answers_;
  bool is_closed_ = false;
  std::atomic<int> write_count_{0};
};

}  // namespace millpond::testing
