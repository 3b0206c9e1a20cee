#include "native/base/status.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>

namespace millpond::base {
namespace {

TEST(Status, IsOkWithoutAMessageByDefault) {
  const Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.code(), Code::kOk);
  EXPECT_EQ(status.message(), "");
}

TEST(Status, KeepsCodeAndMessage) {
  const Status status = NotFound("no model 'ctr'");
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.code(), Code::kNotFound);
  EXPECT_EQ(status.message(), "no model 'ctr'");
}

TEST(Status, NamesEveryCodeOnce) {
  std::set<std::string> names;
  for (int code = 0; code < kCodeCount; ++code) names.insert(CodeName(static_cast<Code>(code)));
  EXPECT_EQ(names.size(), kCodeCount);
  EXPECT_STREQ(CodeName(Code::kOk), "OK");
  EXPECT_STREQ(CodeName(Code::kDeadlineExceeded), "DEADLINE_EXCEEDED");
  EXPECT_STREQ(CodeName(Code::kUnauthenticated), "UNAUTHENTICATED");
}

TEST(StatusOr, HoldsAValueThatOnlyMoves) {
  StatusOr<std::unique_ptr<int>> number = std::make_unique<int>(7);
  ASSERT_TRUE(number.ok());
  EXPECT_EQ(*number.value(), 7);
}

TEST(WithShortMessage, CutsLongMessagesBetweenCharacters) {
  const auto cut = [](const std::string& message) {
    return WithShortMessage(NotFound(message)).message();
  };
  EXPECT_EQ(cut(std::string(1024, 'x')), std::string(1024, 'x'));
  EXPECT_EQ(cut(std::string(1025, 'x')), std::string(1024, 'x') + "...TRUNCATED");
  EXPECT_EQ(cut(std::string(1023, 'x') + "\u00fc"), std::string(1023, 'x') + "...TRUNCATED");
  EXPECT_EQ(WithShortMessage(NotFound(std::string(2000, 'x'))).code(), Code::kNotFound);
}

TEST(StatusOr, HoldsTheStatusIfItHasNoValue) {
  const StatusOr<int> number = DataLoss("variables.data-00000-of-00001 is cut short");
  EXPECT_FALSE(number.ok());
  EXPECT_EQ(number.status().code(), Code::kDataLoss);
}

TEST(MoveValue, LeavesTheTargetAsItIsIfThereIsNoValue) {
  auto number = std::make_unique<int>(7);
  const Status moved = MoveValue<std::unique_ptr<int>>(NotFound("no number"), &number);
  EXPECT_EQ(moved.code(), Code::kNotFound);
  EXPECT_EQ(*number, 7);
  EXPECT_TRUE(MoveValue<std::unique_ptr<int>>(std::make_unique<int>(8), &number).ok());
  EXPECT_EQ(*number, 8);
}

// Fails at its first step or not, and records if it came past it.
Status TakeStep(Status step, bool* came_past) {
  MILLPOND_RETURN_IF_ERROR(step);
  *came_past = true;
  return {};
}

TEST(ReturnIfError, LeavesOnAnErrorWithThatError) {
  bool came_past = false;
  EXPECT_EQ(TakeStep(Internal("broken"), &came_past).message(), "broken");
  EXPECT_FALSE(came_past);
}

TEST(ReturnIfError, ContinuesIfOk) {
  bool came_past = false;
  EXPECT_TRUE(TakeStep({}, &came_past).ok());
  EXPECT_TRUE(came_past);
}

}  // namespace
}  // namespace millpond::base
