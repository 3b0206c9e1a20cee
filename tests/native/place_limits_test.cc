// How many connections each port may have, whatever clients open, and whatever the process may have
// open.

#include "native/rpc/place_limits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "tests/native/descriptor_table.h"

namespace millpond::rpc {
namespace {

TEST(Descriptors, RoomForManyIsMadeAhead) {
  const int64_t length = testing::DescriptorTableLength();
  const Descriptors now = Descriptors::Now();
  ASSERT_GT(length, 0);
  Descriptors::MakeRoom(length + 1);
  if (std::min(now.limit, Descriptors::kRoomMax) > length) {
    EXPECT_GT(testing::DescriptorTableLength(), length);
  }
  EXPECT_EQ(Descriptors::Now().in_use, now.in_use);
  Descriptors::MakeRoom(INT64_MAX);
  EXPECT_LE(testing::DescriptorTableLength(), std::max(2 * length, Descriptors::kRoomMax));
}

TEST(PlaceLimits, CountsAreOnlyAsHighAsIsWanted) {
  EXPECT_EQ(PlaceLimits::OfGrpc({1'024, 100}, 0).count_max, 512);
  EXPECT_EQ(PlaceLimits::OfGrpc({1'024, 100}, 7).count_max, 7);
  EXPECT_EQ(PlaceLimits::OfMakingPlace({100'000, 100}, 2'000).count_full, 2'000);
  EXPECT_EQ(PlaceLimits::OfMakingPlace({100'000, 100}, 2'000).count_max, 2'128);
}

TEST(PlaceLimits, FewDescriptorsMakeTheReserveSmall) {
  const PlaceLimits places = PlaceLimits::OfMakingPlace({300, 100}, 2'000);
  EXPECT_EQ(places.count_full, 50);
  EXPECT_EQ(places.count_max, 75);
  EXPECT_EQ(places.RoomFor(49, 200), Room::kFree);
  EXPECT_EQ(places.RoomFor(50, 200), Room::kScarce);
  EXPECT_EQ(places.RoomFor(75, 200), Room::kNone);
  EXPECT_EQ(places.RoomFor(0, 264), Room::kScarce);
  EXPECT_EQ(places.RoomFor(0, 275), Room::kNone);
}

// Clients of two ports that open and close connections at random. The kernel gives the lowest free
// descriptor.
class World {
 public:
  explicit World(uint32_t seed) : random_(seed) {
    descriptors_.limit = Below(1, 3'000);
    descriptors_.in_use = Below(0, descriptors_.limit);
    grpc_.places = PlaceLimits::OfGrpc(descriptors_, Below(0, 2) * 1'000);
    other_.places = PlaceLimits::OfMakingPlace(descriptors_, Below(0, 2) * 1'000);
    for (int64_t number = descriptors_.in_use; number <= descriptors_.limit; ++number) {
      free_.insert(free_.end(), number);
    }
  }

  void Step() {
    Port& port = Below(0, share_of_grpc_) > 0 ? grpc_ : other_;
    if (Below(0, 200) == 0) share_of_grpc_ = Below(0, 9);
    if (Below(0, 9) < 2) return Close(&port);
    Open(&port);
  }

  void Check() const {
    const int64_t free = descriptors_.limit - descriptors_.in_use;
    const auto taken = static_cast<int64_t>(grpc_.open.size() + other_.open.size());
    ASSERT_LE(taken, free - free / 8) << "the server's own descriptors are taken";
    if (!is_refused_) return;
    // A connection that holds one of the places can leave.
    const auto count = static_cast<int64_t>(other_.open.size());
    ASSERT_TRUE(count >= free / 8 || count >= other_.places.count_max) << count << " of " << free;
  }

 private:
  struct Port {
    PlaceLimits places;
    std::vector<int64_t> open;
  };

  int64_t Below(int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random_);
  }
  void Open(Port* port) {
    const int64_t descriptor = *free_.begin();
    const auto count = static_cast<int64_t>(port->open.size());
    const bool has_room = port->places.RoomFor(count, descriptor) != Room::kNone;
    is_refused_ = port == &other_ && !has_room;
    if (!has_room) return;
    free_.erase(free_.begin());
    port->open.push_back(descriptor);
  }
  void Close(Port* port) {
    is_refused_ = false;
    if (port->open.empty()) return;
    const auto last = static_cast<int64_t>(port->open.size()) - 1;
    std::swap(port->open[static_cast<size_t>(Below(0, last))], port->open.back());
    free_.insert(port->open.back());
    port->open.pop_back();
  }

  std::mt19937 random_;
  Descriptors descriptors_;
  std::set<int64_t> free_;
  Port grpc_;
  Port other_;
  int64_t share_of_grpc_ = 1;
  bool is_refused_ = false;
};

TEST(PlaceLimits, WhoeverIsRefusedFindsAConnectionThatLeaves) {
  for (uint32_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(seed);
    World world(seed);
    for (int i = 0; i < 4'000; ++i) {
      world.Step();
      ASSERT_NO_FATAL_FAILURE(world.Check());
    }
  }
}

}  // namespace
}  // namespace millpond::rpc
