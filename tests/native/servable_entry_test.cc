#include "native/servable/servable_entry.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "tests/native/fake_entry.h"
#include "tests/native/threads.h"
#include "tests/native/units.h"

namespace millpond::servable {
namespace {

using base::Code;

// Above the time of any machine; a test that needs it has failed.
using testing::kForeverNs;

bool HasQuiesced(ServableEntry& entry, int64_t timeout_ns = kForeverNs) {
  const base::StatusOr<bool> quiesced = entry.Quiesce(timeout_ns);
  EXPECT_TRUE(quiesced.ok()) << quiesced.status().message();
  return quiesced.ok() && quiesced.value();
}

TEST(ServableEntry, GoesThroughItsLifeAndFreesTheServableInDestroy) {
  FakeServableFate fate;
  const auto entry = MakeFakeEntry("m", 1, &fate);
  ASSERT_TRUE(entry->MarkPublished().ok());
  EXPECT_TRUE(entry->is_published());
  entry->MarkRetired();
  EXPECT_FALSE(entry->is_published());
  EXPECT_TRUE(HasQuiesced(*entry));
  EXPECT_TRUE(fate.is_alive);
  ASSERT_TRUE(entry->Destroy().ok());
  EXPECT_FALSE(fate.is_alive);
  EXPECT_TRUE(entry->is_destroyed());
  EXPECT_EQ(entry->id().version, 1);
}

TEST(ServableEntry, CountsHandlesAndAMovedOneOnce) {
  const auto entry = MakeFakeEntry("m", 1);
  ServableHandle first(entry.get());
  EXPECT_EQ(entry->handle_count(), 1);
  ServableHandle moved(std::move(first));
  EXPECT_EQ(entry->handle_count(), 1);
  EXPECT_TRUE(moved);
  EXPECT_EQ(moved->id().name, "m");
  ServableHandle second(entry.get());
  EXPECT_EQ(entry->handle_count(), 2);
  second = std::move(moved);
  EXPECT_EQ(entry->handle_count(), 1);
  second = ServableHandle();
  EXPECT_EQ(entry->handle_count(), 0);
}

TEST(ServableEntry, OwnersOfAnEntryPinItOnlyUntilItIsRetired) {
  const auto entry = MakeFakeEntry("m", 1);
  ASSERT_TRUE(entry->MarkPublished().ok());
  {
    const ServableHandle held = ServableHandle::UnlessRetired(entry.get());
    EXPECT_TRUE(held);
    EXPECT_EQ(entry->handle_count(), 1);
    entry->MarkRetired();
    EXPECT_FALSE(HasQuiesced(*entry, 0));
    EXPECT_FALSE(ServableHandle::UnlessRetired(entry.get()));
  }
  EXPECT_TRUE(HasQuiesced(*entry));
  EXPECT_EQ(entry->handle_count(), 0);
  EXPECT_TRUE(entry->Destroy().ok());
}

TEST(ServableEntry, PinsBesideARetirementAreWaitedForOrRefused) {
  for (int round = 0; round < 200; ++round) {
    FakeServableFate fate;
    const auto entry = MakeFakeEntry("m", 1, &fate);
    ASSERT_TRUE(entry->MarkPublished().ok());
    std::thread pinner([&] {
      for (int i = 0; i < 100; ++i) {
        const ServableHandle handle = ServableHandle::UnlessRetired(entry.get());
        if (handle) {
          EXPECT_TRUE(fate.is_alive);
        }
      }
    });
    entry->MarkRetired();
    EXPECT_TRUE(HasQuiesced(*entry));
    EXPECT_TRUE(entry->Destroy().ok());
    pinner.join();
  }
}

TEST(ServableEntry, HandleCountIsTheHandlesAfterItIsRetiredToo) {
  const auto entry = MakeFakeEntry("m", 1);
  ASSERT_TRUE(entry->MarkPublished().ok());
  const ServableHandle handle(entry.get());
  entry->MarkRetired();
  EXPECT_EQ(entry->handle_count(), 1);
}

TEST(ServableEntry, DestroyIsRefusedWhilePublishedRetiredOrHeld) {
  FakeServableFate fate;
  const auto entry = MakeFakeEntry("m", 7, &fate);
  {
    const ServableHandle handle(entry.get());
    const base::Status refused = entry->Destroy();
    EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
    EXPECT_NE(refused.message().find("m version 7"), std::string::npos) << refused.message();
  }
  ASSERT_TRUE(entry->MarkPublished().ok());
  EXPECT_EQ(entry->Destroy().code(), Code::kFailedPrecondition);
  entry->MarkRetired();
  EXPECT_EQ(entry->Destroy().code(), Code::kFailedPrecondition);
  EXPECT_TRUE(fate.is_alive);
  EXPECT_TRUE(HasQuiesced(*entry));
  EXPECT_TRUE(entry->Destroy().ok());
}

TEST(ServableEntry, DestroyedBeforeItWasEverPublishedAndTwiceIsFine) {
  FakeServableFate fate;
  const auto entry = MakeFakeEntry("m", 1, &fate);
  EXPECT_TRUE(entry->Destroy().ok());
  EXPECT_FALSE(fate.is_alive);
  EXPECT_TRUE(entry->Destroy().ok());
}

TEST(ServableEntry, IsNotPublishedWhileRetiringOrDestroyed) {
  const auto entry = MakeFakeEntry("m", 1);
  ASSERT_TRUE(entry->MarkPublished().ok());
  entry->MarkRetired();
  EXPECT_EQ(entry->MarkPublished().code(), Code::kFailedPrecondition);
  EXPECT_FALSE(entry->is_published());
  ASSERT_TRUE(HasQuiesced(*entry));
  ASSERT_TRUE(entry->Destroy().ok());
  EXPECT_EQ(entry->MarkPublished().code(), Code::kFailedPrecondition);
  EXPECT_TRUE(entry->is_destroyed());
}

TEST(ServableEntry, QuiesceIsRefusedWhilePublished) {
  const auto entry = MakeFakeEntry("m", 1);
  ASSERT_TRUE(entry->MarkPublished().ok());
  EXPECT_EQ(entry->Quiesce(0).status().code(), Code::kFailedPrecondition);
}

TEST(ServableEntry, QuiesceOfAFreeEntryReturnsAtOnceRepeatedly) {
  const auto entry = MakeFakeEntry("m", 1);
  EXPECT_TRUE(HasQuiesced(*entry, 0));  // never published
  ASSERT_TRUE(entry->MarkPublished().ok());
  entry->MarkRetired();
  EXPECT_TRUE(HasQuiesced(*entry, 0));
  EXPECT_TRUE(HasQuiesced(*entry, 0));
}

TEST(ServableEntry, QuiesceTimesOutWhileHeldAndSucceedsLater) {
  const auto entry = MakeFakeEntry("m", 1);
  ASSERT_TRUE(entry->MarkPublished().ok());
  ServableHandle handle(entry.get());
  entry->MarkRetired();
  EXPECT_FALSE(HasQuiesced(*entry, 1'000'000));
  EXPECT_EQ(entry->Destroy().code(), Code::kFailedPrecondition);
  handle = ServableHandle();
  EXPECT_TRUE(HasQuiesced(*entry, 0));
}

TEST(ServableEntry, QuiesceWakesOnTheLastOfManyHandles) {
  const auto entry = MakeFakeEntry("m", 1);
  ASSERT_TRUE(entry->MarkPublished().ok());
  std::atomic<int> pinned_count{0};
  std::atomic<bool> is_retired{false};
  std::atomic<int> dropped_count{0};
  testing::RunTogether(5, [&](int thread) {
    if (thread == 0) {
      while (pinned_count < 4) std::this_thread::yield();
      entry->MarkRetired();
      is_retired = true;
      EXPECT_TRUE(HasQuiesced(*entry));
      EXPECT_EQ(dropped_count.load(), 4);
      EXPECT_TRUE(entry->Destroy().ok());
      return;
    }
    ServableHandle handle(entry.get());
    pinned_count += 1;
    while (!is_retired) std::this_thread::yield();
    EXPECT_TRUE(static_cast<const WatchedServable&>(*handle).IsWhole());
    dropped_count += 1;
  });
}

TEST(ServableEntry, RepublishedAfterQuiesceServesAndRetires) {
  const auto entry = MakeFakeEntry("m", 1);
  for (int life = 0; life < 3; ++life) {
    ASSERT_TRUE(entry->MarkPublished().ok());
    ServableHandle handle(entry.get());
    EXPECT_EQ(entry->handle_count(), 1);
    entry->MarkRetired();
    EXPECT_FALSE(HasQuiesced(*entry, 0));
    handle = ServableHandle();
    EXPECT_TRUE(HasQuiesced(*entry, 0));
  }
  EXPECT_TRUE(entry->Destroy().ok());
}

// Its owner may run it at any time, for example to warm it up again before a rollback.
TEST(ServableEntry, OwnersHandleBetweenLivesKeepsTheNextQuiesce) {
  const auto entry = MakeFakeEntry("m", 1);
  ASSERT_TRUE(entry->MarkPublished().ok());
  entry->MarkRetired();
  { const ServableHandle of_owner(entry.get()); }
  ASSERT_TRUE(HasQuiesced(*entry));
  { const ServableHandle of_owner(entry.get()); }
  ASSERT_TRUE(entry->MarkPublished().ok());
  ServableHandle handle(entry.get());
  entry->MarkRetired();
  EXPECT_FALSE(HasQuiesced(*entry, 0));
  handle = ServableHandle();
  EXPECT_TRUE(HasQuiesced(*entry, 0));
}

TEST(ServableEntry, RecordsRequestsThroughAHandle) {
  const auto entry = MakeFakeEntry("m", 1);
  const ServableHandle handle(entry.get());
  handle.requests()
      .Of(metrics::Method::kPredict)
      .Record(Code::kOk, metrics::PhaseTimes::OfTotal(1'000));
  EXPECT_EQ(entry->requests().Of(metrics::Method::kPredict).Summary().latency.count(), 1);
}

}  // namespace
}  // namespace millpond::servable
