#include "native/servable/routing.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>

#include "tests/native/fake_metadata.h"
#include "tests/native/threads.h"

namespace millpond::servable {
namespace {

constexpr char kHeader[] = "user-id";
constexpr int kRequestCount = 10'000;

Routing Canary(double weight, const std::string& header = kHeader) {
  return {{}, {}, /*canary_version=*/2, weight, header};
}

std::string User(int number) { return "user-" + std::to_string(number); }

bool IsUserForCanary(const Routing& routing, int number) {
  return IsForCanary(routing, FakeMetadata(kHeader, User(number)));
}

// Five standard deviations of the binomial: one run in two million is farther off by chance.
void ExpectShare(int canary_count, double weight) {
  const double expected = kRequestCount * weight;
  EXPECT_NEAR(canary_count, expected, 5 * std::sqrt(expected * (1 - weight)));
}

void ExpectRefused(const Routing& routing, const std::string& in_message) {
  const base::Status refused = CheckRouting(routing);
  EXPECT_EQ(refused.code(), base::Code::kInvalidArgument);
  EXPECT_NE(refused.message().find(in_message), std::string::npos) << refused.message();
}

TEST(Routing, ACanaryWeightIsAShareOfTheRequests) {
  for (const double weight : {0.0, 0.25, 1.0}) EXPECT_TRUE(CheckRouting(Canary(weight)).ok());
  ExpectRefused(Canary(-0.01), "-0.01");
  ExpectRefused(Canary(1.5), "1.5");
  ExpectRefused(Canary(std::nan("")), "nan");
  ExpectRefused(Canary(std::numeric_limits<double>::infinity()), "inf");
}

TEST(Routing, ACanaryHeaderIsAKeyOfGrpcsMetadata) {
  for (const char* header : {"", "user-id", "x_tenant.2", "key-bin"}) {
    EXPECT_TRUE(CheckRouting(Canary(0.5, header)).ok()) << header;
  }
  for (const char* header : {"User-Id", "user id", ":authority", "n\xc3\xbcmero"}) {
    ExpectRefused(Canary(0.5, header), header);
  }
}

TEST(Routing, WithoutDefaultLabelsAndCanaryItIsTheDefault) {
  EXPECT_TRUE(Routing().IsDefault());
  EXPECT_FALSE((Routing{1}.IsDefault()));
  EXPECT_FALSE((Routing{{}, {{"stable", 1}}}.IsDefault()));
  EXPECT_FALSE(Canary(0).IsDefault());
}

TEST(IsForCanary, StickyValuesSplitByTheWeight) {
  for (const double weight : {0.01, 0.1, 0.5, 0.9}) {
    int canary_count = 0;
    for (int user = 0; user < kRequestCount; ++user) {
      canary_count += IsUserForCanary(Canary(weight), user) ? 1 : 0;
    }
    ExpectShare(canary_count, weight);
  }
}

TEST(IsForCanary, StickyValueKeepsItsSideAsTheWeightRises) {
  for (int user = 0; user < 1'000; ++user) {
    bool was_for_canary = false;
    for (const double weight : {0.0, 0.05, 0.3, 0.3, 0.7, 1.0}) {
      const bool is_for_canary = IsUserForCanary(Canary(weight), user);
      ASSERT_EQ(is_for_canary, IsUserForCanary(Canary(weight), user));
      ASSERT_TRUE(is_for_canary || !was_for_canary) << user << " at " << weight;
      was_for_canary = is_for_canary;
    }
    ASSERT_TRUE(was_for_canary);
  }
}

// The servers of a fleet, of whatever build, send the same users to the canary. A program of its
// own computed these sides from FNV-1a and splitmix64.
TEST(IsForCanary, TheSideOfAStickyValueIsTheSameOnEveryServer) {
  std::string sides;
  for (int user = 0; user < 32; ++user) sides += IsUserForCanary(Canary(0.5), user) ? 'c' : '.';
  EXPECT_EQ(sides, "c.ccccc.c.c..cc.cc..c...c.cc....");
}

TEST(IsForCanary, WithoutAHeaderOrItsValueTheRequestsSplitAtRandom) {
  for (const Routing& routing : {Canary(0.3, ""), Canary(0.3)}) {
    const FakeMetadata other("tenant", "acme");
    int canary_count = 0;
    for (int i = 0; i < kRequestCount; ++i) canary_count += IsForCanary(routing, other) ? 1 : 0;
    ExpectShare(canary_count, 0.3);
  }
}

TEST(IsForCanary, Weight0TakesNoRequestAndWeight1All) {
  const FakeMetadata none;
  for (int i = 0; i < kRequestCount; ++i) {
    ASSERT_FALSE(IsForCanary(Canary(0), none));
    ASSERT_TRUE(IsForCanary(Canary(1), none));
  }
}

TEST(IsForCanary, EachThreadDrawsItsOwnRandomNumbers) {
  constexpr int kThreadCount = 4;
  std::string draws[kThreadCount];
  testing::RunTogether(kThreadCount, [&](int thread) {
    for (int i = 0; i < 128; ++i) {
      draws[thread] += IsForCanary(Canary(0.5), FakeMetadata()) ? 'c' : '.';
    }
  });
  EXPECT_EQ(std::set<std::string>(draws, draws + kThreadCount).size(), kThreadCount);
}

TEST(IsForCanary, TheMetadataIsReadOnlyForAHeader) {
  const FakeMetadata metadata(kHeader, "user-1");
  (void)IsForCanary(Canary(0.5, ""), metadata);
  EXPECT_EQ(metadata.read_count(), 0);
  (void)IsForCanary(Canary(0.5), metadata);
  EXPECT_EQ(metadata.read_count(), 1);
}

}  // namespace
}  // namespace millpond::servable
