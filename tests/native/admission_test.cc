#include "native/servable/admission.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/native/threads.h"

namespace millpond::servable {
namespace {

using base::Code;

std::vector<Admission::Ticket> EnterTimes(Admission* admission, int count,
                                          const std::string& model) {
  std::vector<Admission::Ticket> tickets;
  for (int i = 0; i < count; ++i) {
    auto ticket = admission->Enter(model);
    EXPECT_TRUE(ticket.ok()) << ticket.status().message();
    if (ticket.ok()) tickets.push_back(std::move(ticket.value()));
  }
  return tickets;
}

TEST(Admission, AtItsLimitItRefusesUntilATicketIsGivenUp) {
  Admission admission(2);
  auto tickets = EnterTimes(&admission, 2, "m");
  const auto refused = admission.Enter("m");
  EXPECT_EQ(refused.status().code(), Code::kResourceExhausted);
  EXPECT_NE(refused.status().message().find("2 requests are in flight"), std::string::npos);
  EXPECT_NE(refused.status().message().find("--max_in_flight_requests"), std::string::npos);
  EXPECT_EQ(admission.in_flight_count(), 2);
  EXPECT_EQ(admission.refused_count(), 1);
  tickets.pop_back();
  EXPECT_TRUE(admission.Enter("m").ok());
}

TEST(Admission, AModelsLimitIsItsOwn) {
  Admission admission(10);
  admission.SetModelLimits({{"slow", 1}});
  auto slow = EnterTimes(&admission, 1, "slow");
  const auto refused = admission.Enter("slow");
  EXPECT_EQ(refused.status().code(), Code::kResourceExhausted);
  EXPECT_NE(refused.status().message().find("'slow'"), std::string::npos);
  // A refused request is not counted.
  EXPECT_EQ(admission.in_flight_count(), 1);
  const auto others = EnterTimes(&admission, 9, "quick");
  slow.clear();
  EXPECT_TRUE(admission.Enter("slow").ok());
}

TEST(Admission, TheServersLimitHoldsForAModelBelowItsOwn) {
  Admission admission(1);
  admission.SetModelLimits({{"m", 5}});
  const auto tickets = EnterTimes(&admission, 1, "m");
  const auto refused = admission.Enter("m");
  EXPECT_NE(refused.status().message().find("1 requests are in flight"), std::string::npos)
      << refused.status().message();
}

TEST(Admission, NewModelLimitsHoldForThoseThatComeAfter) {
  Admission admission(10);
  EXPECT_FALSE(admission.has_model_limits());
  admission.SetModelLimits({{"m", 1}});
  EXPECT_TRUE(admission.has_model_limits());
  auto tickets = EnterTimes(&admission, 1, "m");
  admission.SetModelLimits({{"m", 2}, {"n", 1}});
  auto more = EnterTimes(&admission, 1, "m");
  EXPECT_FALSE(admission.Enter("m").ok());
  admission.SetModelLimits({});
  EXPECT_FALSE(admission.has_model_limits());
  EXPECT_TRUE(admission.Enter("m").ok());
  // Requests that took a place under a limit return it, even if the limit was removed meanwhile.
  tickets.clear();
  more.clear();
  admission.SetModelLimits({{"m", 1}});
  EXPECT_TRUE(admission.Enter("m").ok());
  EXPECT_EQ(admission.in_flight_count(), 0);
}

TEST(Admission, AMovedTicketIsGivenUpOnce) {
  Admission admission(2);
  admission.SetModelLimits({{"m", 2}});
  auto entered = admission.Enter("m");
  Admission::Ticket first = std::move(entered.value());
  EXPECT_FALSE(static_cast<bool>(entered.value()));
  Admission::Ticket second = std::move(first);
  EXPECT_EQ(admission.in_flight_count(), 1);
  second = std::move(admission.Enter("m").value());
  EXPECT_EQ(admission.in_flight_count(), 1);
  second = Admission::Ticket();
  EXPECT_EQ(admission.in_flight_count(), 0);
  const auto both = EnterTimes(&admission, 2, "m");
}

TEST(Admission, SpreadsWhenTheRefusedComeBack) {
  Admission admission(1);
  const auto tickets = EnterTimes(&admission, 1, "m");
  std::set<int64_t> pushbacks_ms;
  for (int i = 0; i < 50; ++i) {
    EXPECT_FALSE(admission.Enter("m").ok());
    pushbacks_ms.insert(admission.NextPushbackMs());
  }
  EXPECT_EQ(pushbacks_ms.size(), 50U);
  EXPECT_GE(*pushbacks_ms.begin(), 50);
  EXPECT_LE(*pushbacks_ms.rbegin(), 150);
}

TEST(Admission, ThreadsNeverExceedTheLimitsAndReleaseAll) {
  Admission admission(6);
  admission.SetModelLimits({{"limited", 3}});
  std::atomic<int> limited_count{0};
  std::atomic<int> all_count{0};
  testing::RunTogether(4, [&](int thread) {
    const bool is_limited = thread % 2 == 0;
    for (int round = 0; round < 5'000; ++round) {
      std::vector<Admission::Ticket> tickets;
      for (int i = 0; i < 3; ++i) {
        auto entered = admission.Enter(is_limited ? "limited" : "free");
        if (entered.ok()) tickets.push_back(std::move(entered.value()));
      }
      const int held_count = static_cast<int>(tickets.size());
      ASSERT_LE(all_count.fetch_add(held_count) + held_count, 6);
      if (is_limited) {
        ASSERT_LE(limited_count.fetch_add(held_count) + held_count, 3);
      }
      if (is_limited) limited_count -= held_count;
      all_count -= held_count;
      if (round % 1'000 == 0) admission.SetModelLimits({{"limited", 3}});
    }
  });
  EXPECT_EQ(admission.in_flight_count(), 0);
  EXPECT_TRUE(admission.Enter("limited").ok());
}

}  // namespace
}  // namespace millpond::servable
