#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "native/rpc/session.h"

namespace millpond::testing {

// A session without a protocol: it writes down what it is asked for, one line each, and produces
// the bytes that the test gives it.
class FakeSession final : public rpc::Session {
 public:
  bool is_made() const override { return true; }
  bool Feed(std::string_view) override { return true; }
  Output Produce(rpc::OutputQueue* output) override {
    if (is_broken) return Output::kBroken;
    if (to_produce.empty()) return Output::kNothing;
    const std::string part = to_produce.substr(0, part_bytes);
    to_produce.erase(0, part.size());
    output->Append(part);
    return Output::kMore;
  }
  bool is_over() const override { return false; }
  void Submit(int32_t stream, const rpc::HeaderList& headers) override {
    Add(stream, TextOf(headers));
  }
  void Submit(int32_t stream, const rpc::HeaderList& headers, rpc::AnswerBody* body) override {
    Add(stream, TextOf(headers) + "body");
    bodies[stream] = body;
  }
  void Resume(int32_t stream) override { Add(stream, "resume"); }
  void Reset(int32_t stream, rpc::ResetReason reason) override {
    Add(stream, "reset " + std::to_string(static_cast<int>(reason)));
  }
  void SubmitPing() override {}
  void SubmitGoaway() override {}
  void SubmitLastGoaway() override {}
  void SubmitComplaint(std::string_view) override {}

  // Takes up to `bytes_max` bytes of a body. Returns true after the last of them, and adds the
  // trailers to the text.
  bool TakeBody(int32_t stream, size_t bytes_max, std::string* bytes) {
    rpc::AnswerBody* const body = bodies.at(stream);
    bool is_last = false;
    rpc::OutputQueue output;
    body->Take(body->Offer(bytes_max, &is_last), &output);
    output.WriteTo(&writer_);
    bytes->append(writer_.Take());
    if (is_last) Add(stream, TextOf(body->Trailers()));
    return is_last;
  }
  // The lines since the last call.
  std::string Take() { return std::exchange(text_, ""); }

  std::string to_produce;
  size_t part_bytes = 1;
  bool is_broken = false;
  std::map<int32_t, rpc::AnswerBody*> bodies;

 private:
  // Takes all that is written.
  class Writer {
   public:
    rpc::Transport::Result Write(const iovec* pieces, size_t count) {
      size_t size = 0;
      for (size_t i = 0; i < count; ++i) {
        bytes_.append(static_cast<const char*>(pieces[i].iov_base), pieces[i].iov_len);
        size += pieces[i].iov_len;
      }
      return {rpc::Transport::State::kOk, size};
    }
    std::string Take() { return std::exchange(bytes_, ""); }

   private:
    std::string bytes_;
  };

  static std::string TextOf(const rpc::HeaderList& headers) {
    std::string text;
    for (const auto& field : headers) {
      text += std::string(field.name) + "=" + std::string(field.value) + " ";
    }
    return text;
  }
  void Add(int32_t stream, const std::string& what) {
    text_ += std::to_string(stream) + " " + what + "\n";
  }

  std::string text_;
  Writer writer_;
};

}  // namespace millpond::testing
