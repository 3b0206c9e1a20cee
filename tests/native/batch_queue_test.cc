#include "native/servable/batch_queue.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <set>

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

}  // namespace
}  // namespace millpond::servable
