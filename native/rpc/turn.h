#pragma once

#include <atomic>

namespace millpond::rpc {

// The right to do some work, which one thread has at a time. A thread that comes while another has
// it leaves a note and goes, and no note is lost: the owner works again before the turn is free.
//
//   if (!turn.TryTake()) return;
//   do Work(); while (!turn.TryEnd());
//
// Thread: TryTake: any. TryEnd: the one that has the turn.
class Turn {
 public:
  // Takes the turn, or leaves a note and returns false.
  bool TryTake() {
    State state = state_.load();
    while (true) {
      if (state == kFree) {
        if (state_.compare_exchange_weak(state, kTaken)) return true;
      } else if (state_.compare_exchange_weak(state, kNoted)) {
        return false;
      }
    }
  }
  // Frees the turn. If there is a note, takes the note instead and returns false: work again.
  bool TryEnd() {
    State state = kTaken;
    if (state_.compare_exchange_strong(state, kFree)) return true;
    state_.store(kTaken);
    return false;
  }

 private:
  enum State { kFree, kTaken, kNoted };

  std::atomic<State> state_{kFree};
};

}  // namespace millpond::rpc
