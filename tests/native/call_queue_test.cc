#include "native/rpc/call_queue.h"

#include <gtest/gtest.h>

#include <atomic>

namespace millpond::rpc {
namespace {

TEST(CallQueue, IsAskingUntilGrpcWasAsked) {
  CallQueue queue(nullptr);
  const std::atomic<bool> is_stopping{false};
  EXPECT_FALSE(queue.is_asking());
  queue.AskUnless(is_stopping, [&] {
    EXPECT_TRUE(queue.is_asking());
    // Takes the part of the watchdog for a thread that is held up.
    queue.AskUnless(is_stopping, [] {});
    EXPECT_TRUE(queue.is_asking());
  });
  EXPECT_FALSE(queue.is_asking());
}

TEST(CallQueue, RequestsNoCallOnceItsServerStops) {
  CallQueue queue(nullptr);
  const std::atomic<bool> is_stopping{true};
  bool has_asked = false;
  queue.AskUnless(is_stopping, [&] { has_asked = true; });
  EXPECT_FALSE(has_asked);
  EXPECT_FALSE(queue.is_asking());
}

}  // namespace
}  // namespace millpond::rpc
