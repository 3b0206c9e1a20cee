#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace millpond::rpc {

class CallCarrier;

// The connections whose answers a thread has framed and not written yet. The answers of a batch are
// written together: a write costs more than an answer, and wakes the client.
//
// Thread: its owner's. Send before the thread does anything that may take long.
class HeldAnswers {
 public:
  // So many answers are held at most, so that the first ones do not wait for all.
  static constexpr size_t kHeldMax = 16;

  // While the scope lives, this thread holds its answers here.
  class Scope {
   public:
    // Null: the thread writes its answers at once.
    explicit Scope(HeldAnswers* answers);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    HeldAnswers* const outer_;
  };

  // Returns false if this thread writes its answers at once. Otherwise the answer of `connection`,
  // which the caller has framed, is written by Send.
  static bool Hold(const std::shared_ptr<CallCarrier>& connection);

  // Writes the answers.
  void Send();

 private:
  std::vector<std::shared_ptr<CallCarrier>> connections_;
  size_t held_count_ = 0;
};

}  // namespace millpond::rpc
