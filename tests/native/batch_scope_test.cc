#include "native/servable/batch_scope.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "tests/native/waiting_requests.h"

namespace millpond::servable {
namespace {

TEST(BatchKey, DiffersByModelAndSignature) {
  const std::set<BatchKey> keys = {BatchKeyOf("a", "s"),   BatchKeyOf("b", "s"),
                                   BatchKeyOf("a", "t"),   BatchKeyOf("s", "a"),
                                   BatchKeyOfSeveral("a"), BatchKeyOfSeveral("b")};
  EXPECT_EQ(keys.size(), 6U);
  EXPECT_EQ(keys.count(kNoBatchKey), 0U);
  EXPECT_EQ(BatchKeyOf("a", "s"), BatchKeyOf("a", "s"));
}

TEST(BatchKey, NoSignatureIsTheDefaultOne) {
  EXPECT_EQ(BatchKeyOf("a", ""), BatchKeyOf("a", "serving_default"));
}

TEST(BatchScope, IsThatOfItsThreadAndNests) {
  EXPECT_EQ(BatchScope::Current(), nullptr);
  testing::QueuedRequests waiting;
  {
    const BatchScope outer(&waiting);
    EXPECT_EQ(BatchScope::Current(), &outer);
    {
      const BatchScope inner(&waiting);
      EXPECT_EQ(BatchScope::Current(), &inner);
    }
    EXPECT_EQ(BatchScope::Current(), &outer);
    std::thread([] { EXPECT_EQ(BatchScope::Current(), nullptr); }).join();
  }
  EXPECT_EQ(BatchScope::Current(), nullptr);
}

}  // namespace
}  // namespace millpond::servable
