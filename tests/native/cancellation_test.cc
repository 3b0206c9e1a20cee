#include "native/base/cancellation.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace millpond::base {
namespace {

constexpr int64_t kDeadlineNs = 1'000;
const Status kCancelled{Code::kCancelled, "the run was cancelled"};

Code SettledAfterCancelAt(int64_t now_ns, const Status& status) {
  Cancellation cancellation;
  cancellation.Cancel(now_ns);
  return cancellation.Settle(status, kDeadlineNs).code();
}

TEST(Cancellation, BeforeTheDeadlineTheRequestIsCancelled) {
  EXPECT_EQ(SettledAfterCancelAt(kDeadlineNs - 1, kCancelled), Code::kCancelled);
}

TEST(Cancellation, FromTheDeadlineOnItIsExceeded) {
  EXPECT_EQ(SettledAfterCancelAt(kDeadlineNs, kCancelled), Code::kDeadlineExceeded);
  EXPECT_EQ(SettledAfterCancelAt(kDeadlineNs + 1, kCancelled), Code::kDeadlineExceeded);
}

TEST(Cancellation, AnyOtherEndStays) {
  for (const Code code : {Code::kOk, Code::kInternal, Code::kDeadlineExceeded}) {
    EXPECT_EQ(SettledAfterCancelAt(kDeadlineNs + 1, {code, "x"}), code);
  }
}

TEST(Cancellation, AModelsOwnCodeStaysIfNoClientCancelled) {
  const Cancellation cancellation;
  EXPECT_FALSE(*cancellation.flag());
  EXPECT_EQ(cancellation.Settle(kCancelled, 0).code(), Code::kCancelled);
}

TEST(Cancellation, TheFirstInstantCounts) {
  Cancellation cancellation;
  cancellation.Cancel(kDeadlineNs - 1);
  cancellation.Cancel(kDeadlineNs + 1);
  EXPECT_TRUE(*cancellation.flag());
  EXPECT_EQ(cancellation.Settle(kCancelled, kDeadlineNs).code(), Code::kCancelled);
}

}  // namespace
}  // namespace millpond::base
