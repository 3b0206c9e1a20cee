#include "native/base/reply_buffer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <string>
#include <utility>

#include "native/base/clock.h"

namespace millpond::base {
namespace {

ReplyLimits LimitOf(size_t bytes_max, ByteBudget* budget = nullptr) {
  ReplyLimits limits;
  limits.bytes_max = bytes_max;
  limits.budget = budget;
  return limits;
}

TEST(ReplyBuffer, SizedOnceGoesOutAsItWasWritten) {
  ReplyBuffer buffer(LimitOf(5));
  char* const to = buffer.Extend(5);
  ASSERT_NE(to, nullptr);
  std::memcpy(to, "hello", 5);
  const auto reply = buffer.Take();
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply.value().view(), "hello");
}

TEST(ReplyBuffer, RefusesASizeAboveTheLimitWithoutMemory) {
  ByteBudget budget;
  ReplyBuffer buffer(LimitOf(1'000, &budget));
  EXPECT_EQ(buffer.Extend(size_t{1} << 50U), nullptr);
  EXPECT_EQ(budget.in_use_bytes(), 0);
  const Status status = buffer.Take().status();
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_NE(status.message().find("1125899906842624"), std::string::npos);
  EXPECT_NE(status.message().find("--max_reply_bytes allows 1000"), std::string::npos);
}

TEST(ReplyBuffer, AGrowingReplyMayHaveTheLimitExactly) {
  for (const size_t size : {1U, 511U, 512U, 513U, 4'095U, 4'096U, 4'097U, 70'000U, 300'000U}) {
    const std::string text(size, 'x');
    ReplyBuffer fits(LimitOf(size));
    fits.Append(text);
    const auto taken = fits.Take();
    ASSERT_TRUE(taken.ok()) << size;
    EXPECT_EQ(taken.value().view(), text);
    ReplyBuffer is_longer(LimitOf(size - 1));
    is_longer.Append(text);
    EXPECT_EQ(is_longer.Take().status().code(), Code::kResourceExhausted) << size;
  }
}

TEST(ReplyBuffer, PiecesOfAllSizesComeOutInOrder) {
  ReplyBuffer buffer({});
  std::string expected;
  for (int i = 0; i < 3'000; ++i) {
    const std::string piece(static_cast<size_t>(i * 7 % 300), static_cast<char>('a' + i % 26));
    expected += piece;
    buffer.Append(piece);
    char* const to = buffer.Reserve(2);
    to[0] = '!';
    buffer.Advance(1);
    expected += '!';
  }
  EXPECT_EQ(buffer.size(), expected.size());
  EXPECT_TRUE(buffer.Take().value().view() == expected);
}

TEST(ReplyBuffer, ExtendAfterTextKeepsTheText) {
  ReplyBuffer buffer({});
  buffer.Append("text");
  std::memcpy(buffer.Extend(6), "binary", 6);
  buffer.Append("!");
  EXPECT_EQ(buffer.Take().value().view(), "textbinary!");
}

TEST(ReplyBuffer, TakesNoMoreMemoryOnceItHasFailed) {
  ByteBudget budget;
  ReplyBuffer buffer(LimitOf(10'000, &budget));
  for (int i = 0; i < 100'000; ++i) buffer.Append("0123456789");
  EXPECT_FALSE(buffer.ok());
  EXPECT_LE(budget.in_use_bytes(), 20'000);
}

TEST(ReplyBuffer, ExpectationsAllocateNothing) {
  ByteBudget budget;
  ReplyBuffer buffer(LimitOf(SIZE_MAX, &budget));
  buffer.Expect(SIZE_MAX);
  EXPECT_LE(budget.in_use_bytes(), 2 << 20);
  buffer.Append("x");
  EXPECT_EQ(buffer.Take().value().view(), "x");
}

TEST(ReplyBuffer, CountsInTheBudgetUntilTheReplyIsGone) {
  ByteBudget budget(1'000);
  {
    ReplyBytes reply;
    {
      ReplyBuffer buffer(LimitOf(SIZE_MAX, &budget));
      ASSERT_NE(buffer.Extend(600), nullptr);
      reply = std::move(buffer.Take().value());
    }
    EXPECT_EQ(budget.in_use_bytes(), 600);
    ReplyBuffer other(LimitOf(SIZE_MAX, &budget));
    EXPECT_EQ(other.Extend(600), nullptr);
    EXPECT_EQ(other.status().code(), Code::kResourceExhausted);
    EXPECT_NE(other.status().message().find("--request_memory_bytes"), std::string::npos);
  }
  EXPECT_EQ(budget.in_use_bytes(), 0);
}

TEST(ReplyBuffer, EndsSoonAfterItsDeadline) {
  ReplyLimits limits;
  limits.deadline_ns = MonotonicNs() + 20'000'000;
  ReplyBuffer buffer(limits);
  // The deadline or the limit of 2 GiB ends this, never the reply itself.
  while (buffer.ok()) buffer.Append("[], ");
  EXPECT_EQ(buffer.status().code(), Code::kDeadlineExceeded);
}

TEST(ReplyBuffer, EndsWhenItsClientIsGone) {
  std::atomic<bool> is_cancelled{false};
  ReplyLimits limits;
  limits.is_cancelled = &is_cancelled;
  ReplyBuffer buffer(limits);
  buffer.Append("[");
  is_cancelled = true;
  size_t written_count = 0;
  while (buffer.ok()) {
    buffer.Append("[], ");
    written_count += 1;
  }
  EXPECT_EQ(buffer.Take().status().code(), Code::kCancelled);
  EXPECT_LT(written_count, 100'000U);
}

TEST(ReplyBuffer, TheFirstFailureStays) {
  std::atomic<bool> is_cancelled{false};
  ReplyLimits limits = LimitOf(10);
  limits.is_cancelled = &is_cancelled;
  ReplyBuffer buffer(limits);
  EXPECT_FALSE(buffer.CheckFits(11));
  is_cancelled = true;
  EXPECT_FALSE(buffer.CheckIsWanted());
  EXPECT_EQ(buffer.Take().status().code(), Code::kResourceExhausted);
}

TEST(ReplyLook, LooksOnceInManySteps) {
  std::atomic<bool> is_cancelled{true};
  ReplyLimits limits;
  limits.is_cancelled = &is_cancelled;
  ReplyBuffer buffer(limits);
  ReplyLook look(&buffer);
  int64_t count = 0;
  while (look.Count()) count += 1;
  EXPECT_EQ(count, ReplyBuffer::kLookElements - 1);
  EXPECT_FALSE(look.Count());
}

TEST(CopyReply, HoldsTheTextOrRefusesIt) {
  EXPECT_EQ(CopyReply("", {}).value().view(), "");
  EXPECT_EQ(CopyReply("text", {}).value().view(), "text");
  EXPECT_EQ(CopyReply("text", LimitOf(3)).status().code(), Code::kResourceExhausted);
}

}  // namespace
}  // namespace millpond::base
