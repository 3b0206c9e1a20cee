#include "native/tf/host_tables.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

namespace millpond::tf {
namespace {

using Variables = std::map<ResourceKey, SignatureSplit::Variable>;

const Variables kVariables = {{{"", "dense"}, {100, false}},
                              {{"", "large"}, {1000, true}},
                              {{"", "middle"}, {300, true}},
                              {{"", "small"}, {20, true}}};

std::set<std::string> Chosen(TablePlace place, int64_t room_bytes) {
  std::set<std::string> names;
  for (const ResourceKey& key : ChooseHostTables(kVariables, place, room_bytes)) {
    names.insert(key.name);
  }
  return names;
}

TEST(HostTables, TheLargestGoFirstUntilTheRestFits) {
  EXPECT_EQ(Chosen(TablePlace::kAuto, 1420), std::set<std::string>());
  EXPECT_EQ(Chosen(TablePlace::kAuto, 1419), std::set<std::string>({"large"}));
  EXPECT_EQ(Chosen(TablePlace::kAuto, 420), std::set<std::string>({"large"}));
  EXPECT_EQ(Chosen(TablePlace::kAuto, 419), std::set<std::string>({"large", "middle"}));
}

TEST(HostTables, OnlyTablesCanStay) {
  EXPECT_EQ(Chosen(TablePlace::kAuto, 0), std::set<std::string>({"large", "middle", "small"}));
}

TEST(HostTables, TheSettingDecides) {
  EXPECT_EQ(Chosen(TablePlace::kDevice, 0), std::set<std::string>());
  EXPECT_EQ(Chosen(TablePlace::kHost, 10'000), std::set<std::string>({"large", "middle", "small"}));
}

}  // namespace
}  // namespace millpond::tf
