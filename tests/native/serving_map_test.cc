#include "native/servable/serving_map.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/native/fake_entry.h"
#include "tests/native/fake_metadata.h"
#include "tests/native/serving_maps.h"
#include "tests/native/threads.h"
#include "tests/native/units.h"

namespace millpond::servable {
namespace {

using base::Code;

using testing::kForeverNs;

int64_t LookedUpVersion(ServingMap& map, const std::string& name,
                        std::optional<int64_t> version = {}) {
  const auto handle = map.LookUp(name, {version});
  return handle.ok() ? handle.value()->id().version : -1;
}

// Returns the version that answers a request; -1 if it fails.
int64_t AnsweringVersion(ServingMap& map, const VersionChoice& choice) {
  const auto handle = map.LookUp("m", choice);
  return handle.ok() ? handle.value()->id().version : -1;
}

VersionChoice ByLabel(std::string_view label) { return {{}, label}; }

void PublishVersions(ServingMap& map, int64_t first, int64_t last) {
  for (int64_t version = first; version <= last; ++version) {
    ASSERT_TRUE(PublishHighest(map, MakeFakeEntry("m", version)).ok());
  }
}

void ExpectRefused(ServingMap& map, const VersionChoice& choice, Code code,
                   const std::string& message) {
  const auto handle = map.LookUp("m", choice);
  EXPECT_EQ(handle.status().code(), code);
  EXPECT_EQ(handle.status().message(), message);
}

// Retires, quiesces and destroys it, like an unloader.
void Unload(ServingMap& map, ServableEntry& entry) {
  ASSERT_TRUE(RetireVersion(map, entry.id().name, entry.id().version).ok());
  const auto quiesced = entry.Quiesce(kForeverNs);
  ASSERT_TRUE(quiesced.ok() && quiesced.value());
  ASSERT_TRUE(entry.Destroy().ok());
}

TEST(ServingMap, FindsEachVersionPublishedInAnyOrder) {
  ServingMap map;
  for (const int64_t version : {2, 10, 9, -1}) {
    ASSERT_TRUE(PublishHighest(map, MakeFakeEntry("m", version)).ok());
  }
  EXPECT_EQ(LookedUpVersion(map, "m", 10), 10);
  EXPECT_EQ(LookedUpVersion(map, "m", 2), 2);
  EXPECT_EQ(LookedUpVersion(map, "m", -1), -1);
  EXPECT_EQ(map.Versions("m"), (std::vector<int64_t>{-1, 2, 9, 10}));
}

// OpenVINO's ovmsclient sends 0 for the default version.
TEST(ServingMap, VersionZeroIsTheDefaultOfAModelWithoutOne) {
  ServingMap map;
  ASSERT_TRUE(PublishHighest(map, MakeFakeEntry("m", 3)).ok());
  ASSERT_TRUE(PublishHighest(map, MakeFakeEntry("m", 4)).ok());
  EXPECT_EQ(LookedUpVersion(map, "m", 0), 4);
  ASSERT_TRUE(map.SetRouting("m", {3}).ok());
  EXPECT_EQ(LookedUpVersion(map, "m", 0), 3);
  EXPECT_EQ(LookedUpVersion(map, "n", 0), -1);
}

TEST(ServingMap, VersionZeroIsItselfIfTheModelHasOne) {
  ServingMap map;
  ASSERT_TRUE(PublishHighest(map, MakeFakeEntry("m", 0)).ok());
  ASSERT_TRUE(PublishHighest(map, MakeFakeEntry("m", 1)).ok());
  EXPECT_EQ(LookedUpVersion(map, "m", 0), 0);
  // It has ended: a client that named it must not get another version's answers.
  map.SetNotes("m", {"", false, {{0, {"version 0 was unloaded"}}}});
  ASSERT_TRUE(RetireVersion(map, "m", 0).ok());
  ExpectRefused(map, {0}, Code::kNotFound,
                "Servable not found for request: Specific(m, 0); available versions: 1; version 0 "
                "was unloaded");
}

TEST(ServingMap, VersionZeroWaitsForTheFirstVersionAsTheDefaultDoes) {
  ServingMap map;
  map.SetNotes("m", {"version 2 is loading", true, {{2, {"version 2 is loading", true}}}});
  ExpectRefused(map, {0}, Code::kUnavailable, "model 'm': version 2 is loading");
}

TEST(ServingMap, RetireGivesTheRequestsToTheVersionOfItsRouting) {
  ServingMap map;
  const auto second = MakeFakeEntry("m", 2);
  ASSERT_TRUE(PublishHighest(map, MakeFakeEntry("m", 1)).ok());
  ASSERT_TRUE(PublishHighest(map, second).ok());
  ASSERT_TRUE(map.Retire("m", 2, Routing{1}).ok());
  EXPECT_EQ(LookedUpVersion(map, "m"), 1);
}

TEST(ServingMap, OnlyTheRoutedVersionAnswersUnnamedRequests) {
  ServingMap map;
  ASSERT_TRUE(map.Publish(MakeFakeEntry("m", 1), Routing{}).ok());
  ASSERT_TRUE(map.Publish(MakeFakeEntry("m", 2), Routing{}).ok());
  ExpectRefused(map, {}, Code::kNotFound,
                "Servable not found for request: Latest(m); no version answers requests that name "
                "neither version nor label; available versions: 1 2");
  EXPECT_EQ(LookedUpVersion(map, "m", 2), 2);
  ASSERT_TRUE(map.SetRouting("m", {1}).ok());
  EXPECT_EQ(LookedUpVersion(map, "m"), 1);
}

TEST(ServingMap, AVersionIsPublishedWithItsRouting) {
  ServingMap map;
  ASSERT_TRUE(map.Publish(MakeFakeEntry("m", 1), Routing{1}).ok());
  ASSERT_TRUE(map.Publish(MakeFakeEntry("m", 2), Routing{1, {{"next", 2}}}).ok());
  EXPECT_EQ(AnsweringVersion(map, {}), 1);
  EXPECT_EQ(AnsweringVersion(map, ByLabel("next")), 2);
}

TEST(ServingMap, WrongRoutingIsRefusedAndChangesNothing) {
  ServingMap map;
  ASSERT_TRUE(map.Publish(MakeFakeEntry("m", 1), Routing{1}).ok());
  const Routing wrong{1, {}, 2, 1.5};
  EXPECT_EQ(map.Publish(MakeFakeEntry("m", 2), wrong).code(), Code::kInvalidArgument);
  EXPECT_EQ(map.Retire("m", 1, wrong).code(), Code::kInvalidArgument);
  EXPECT_EQ(map.Versions("m"), std::vector<int64_t>{1});
  EXPECT_EQ(AnsweringVersion(map, {}), 1);
}

// An operator rolls back and drops the next version. The blocked version leaves. At no moment does
// it answer, and the sound version never stops answering.
TEST(ServingMap, ABlockedVersionAnswersInNoSnapshotOfItsRetirement) {
  ServingMap map;
  std::atomic<bool> is_over{false};
  ASSERT_TRUE(map.Publish(MakeFakeEntry("m", 1), Routing{1}).ok());
  testing::RunTogether(4, [&](int thread) {
    for (int64_t blocked = 2; thread == 0 && blocked < 1'000; ++blocked) {
      ASSERT_TRUE(map.Publish(MakeFakeEntry("m", blocked), Routing{1}).ok());
      ASSERT_TRUE(map.Retire("m", blocked, Routing{1}).ok());
    }
    if (thread == 0) is_over = true;
    while (!is_over) {
      ASSERT_EQ(AnsweringVersion(map, {}), 1);
      std::this_thread::yield();
    }
  });
}

TEST(ServingMap, NotFoundListsTheKnownModelsOrVersions) {
  ServingMap map;
  ASSERT_TRUE(PublishHighest(map, MakeFakeEntry("ctr", 3)).ok());
  ASSERT_TRUE(PublishHighest(map, MakeFakeEntry("ctr", 4)).ok());
  const auto no_model = map.LookUp("crt", {});
  EXPECT_EQ(no_model.status().code(), Code::kNotFound);
  EXPECT_EQ(no_model.status().message(),
            "Servable not found for request: Latest(crt); available models: ctr");
  const auto no_version = map.LookUp("ctr", {5});
  EXPECT_EQ(no_version.status().code(), Code::kNotFound);
  EXPECT_EQ(no_version.status().message(),
            "Servable not found for request: Specific(ctr, 5); available versions: 3 4");
}

TEST(ServingMap, NotFoundListsFiveOfManyModelsOrVersions) {
  ServingMap map;
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(PublishHighest(map, MakeFakeEntry("m" + std::to_string(i), 1)).ok());
    ASSERT_TRUE(PublishHighest(map, MakeFakeEntry("m0", 10 + i)).ok());
  }
  EXPECT_EQ(
      map.LookUp("n", {}).status().message(),
      "Servable not found for request: Latest(n); available models: m0 m1 m2 m3 m4 and 3 more");
  EXPECT_EQ(
      map.LookUp("m0", {5}).status().message(),
      "Servable not found for request: Specific(m0, 5); available versions: 1 10 11 12 13 and "
      "4 more");
}

TEST(ServingMap, ANameWhoseLastVersionIsRetiredIsNotFound) {
  ServingMap map;
  const auto entry = MakeFakeEntry("m", 1);
  ASSERT_TRUE(PublishHighest(map, entry).ok());
  Unload(map, *entry);
  EXPECT_EQ(map.LookUp("m", {}).status().code(), Code::kNotFound);
  EXPECT_EQ(map.LookUp("m", {1}).status().code(), Code::kNotFound);
  EXPECT_TRUE(map.Versions("m").empty());
}

TEST(ServingMap, SecondEntryOfAVersionIsRefusedUnchanged) {
  ServingMap map;
  const auto first = MakeFakeEntry("m", 1);
  const auto second = MakeFakeEntry("m", 1);
  ASSERT_TRUE(PublishHighest(map, first).ok());
  EXPECT_EQ(PublishHighest(map, second).code(), Code::kAlreadyExists);
  EXPECT_EQ(PublishHighest(map, first).code(), Code::kAlreadyExists);
  EXPECT_FALSE(second->is_published());
  EXPECT_EQ(&*map.LookUp("m", {1}).value(), &first->servable());
}

TEST(ServingMap, AnEntryThatRetiresOrIsDestroyedIsNotPublished) {
  ServingMap map;
  const auto entry = MakeFakeEntry("m", 1);
  ASSERT_TRUE(PublishHighest(map, entry).ok());
  ASSERT_TRUE(RetireVersion(map, "m", 1).ok());
  EXPECT_EQ(PublishHighest(map, entry).code(), Code::kFailedPrecondition);
  ASSERT_TRUE(entry->Quiesce(0).ok());
  ASSERT_TRUE(entry->Destroy().ok());
  EXPECT_EQ(PublishHighest(map, entry).code(), Code::kFailedPrecondition);
  EXPECT_TRUE(map.Versions("m").empty());
}

TEST(ServingMap, RetiringAnUnpublishedVersionIsNotFound) {
  ServingMap map;
  EXPECT_EQ(RetireVersion(map, "m", 1).code(), Code::kNotFound);
  ASSERT_TRUE(PublishHighest(map, MakeFakeEntry("m", 1)).ok());
  EXPECT_EQ(RetireVersion(map, "m", 2).code(), Code::kNotFound);
  EXPECT_EQ(LookedUpVersion(map, "m"), 1);
}

TEST(ServingMap, AQuiescedVersionIsPublishedAgainForARollback) {
  ServingMap map;
  const auto entry = MakeFakeEntry("m", 1);
  ASSERT_TRUE(PublishHighest(map, entry).ok());
  ASSERT_TRUE(RetireVersion(map, "m", 1).ok());
  ASSERT_TRUE(entry->Quiesce(0).value());
  ASSERT_TRUE(PublishHighest(map, entry).ok());
  EXPECT_EQ(LookedUpVersion(map, "m"), 1);
  Unload(map, *entry);
}

TEST(ServingMap, AHandleKeepsItsVersionAliveAfterItIsRetired) {
  FakeServableFate fate;
  ServingMap map;
  const auto entry = MakeFakeEntry("m", 1, &fate);
  ASSERT_TRUE(PublishHighest(map, entry).ok());
  {
    const auto handle = map.LookUp("m", {1});
    ASSERT_TRUE(RetireVersion(map, "m", 1).ok());
    EXPECT_FALSE(entry->Quiesce(0).value());
    EXPECT_EQ(entry->Destroy().code(), Code::kFailedPrecondition);
    EXPECT_TRUE(static_cast<const WatchedServable&>(*handle.value()).IsWhole());
  }
  EXPECT_TRUE(entry->Quiesce(0).value());
  EXPECT_TRUE(fate.is_alive);
}

TEST(ServingMap, AHandleOnOneVersionDelaysNoOtherOne) {
  ServingMap map;
  const auto slow = MakeFakeEntry("slow", 1);
  ASSERT_TRUE(PublishHighest(map, slow).ok());
  const auto handle = map.LookUp("slow", {});
  const auto other = MakeFakeEntry("other", 1);
  const auto next = MakeFakeEntry("slow", 2);
  ASSERT_TRUE(PublishHighest(map, other).ok());
  ASSERT_TRUE(PublishHighest(map, next).ok());
  Unload(map, *other);
  Unload(map, *next);
  EXPECT_EQ(slow->handle_count(), 1);
  EXPECT_EQ(LookedUpVersion(map, "slow"), 1);
}

// --- routing ---

// A Routing is written {default_version, labels, canary_version, canary_weight, canary_header}
// here, and a VersionChoice {version, label, metadata}.

TEST(ServingMapRouting, TheDefaultVersionAnswersIfItIsPublished) {
  ServingMap map;
  PublishVersions(map, 1, 3);
  ASSERT_TRUE(map.SetRouting("m", {2}).ok());
  EXPECT_EQ(AnsweringVersion(map, {}), 2);
  EXPECT_EQ(AnsweringVersion(map, {3}), 3);
  ASSERT_TRUE(map.SetRouting("m", {9}).ok());
  EXPECT_EQ(AnsweringVersion(map, {}), -1);
}

TEST(ServingMapRouting, ALabelFindsItsVersionAndMoves) {
  ServingMap map;
  PublishVersions(map, 1, 3);
  ASSERT_TRUE(map.SetRouting("m", {{}, {{"stable", 1}, {"next", 2}}}).ok());
  EXPECT_EQ(AnsweringVersion(map, ByLabel("stable")), 1);
  EXPECT_EQ(AnsweringVersion(map, ByLabel("next")), 2);
  ASSERT_TRUE(map.SetRouting("m", {{}, {{"stable", 2}}}).ok());
  EXPECT_EQ(AnsweringVersion(map, ByLabel("stable")), 2);
  EXPECT_EQ(AnsweringVersion(map, ByLabel("next")), -1);
}

TEST(ServingMapRouting, AnUnknownLabelIsRefusedNamingTheKnownOnes) {
  ServingMap map;
  PublishVersions(map, 1, 1);
  ExpectRefused(map, ByLabel("stabel"), Code::kInvalidArgument,
                "Unrecognized servable version label: stabel; model 'm' has no labels: give it "
                "one with version_labels in its configuration, or request a version, or neither");
  ASSERT_TRUE(map.SetRouting("m", {{}, {{"stable", 1}, {"next", 2}}}).ok());
  ExpectRefused(map, ByLabel("stabel"), Code::kInvalidArgument,
                "Unrecognized servable version label: stabel; labels of model 'm': next stable; "
                "request one of them, a version, or neither");
}

TEST(ServingMapRouting, ALabelWhoseVersionIsNotPublishedIsNotFound) {
  ServingMap map;
  PublishVersions(map, 1, 1);
  ASSERT_TRUE(map.SetRouting("m", {1, {{"next", 2}}}).ok());
  ExpectRefused(map, ByLabel("next"), Code::kNotFound,
                "Servable not found for request: Specific(m, 2), to which version label 'next' "
                "points; available versions: 1");
}

TEST(ServingMapRouting, LabelOfAVersionToComeIsNotFoundUntilThen) {
  ServingMap map;
  PublishVersions(map, 1, 1);
  Routing routing{1, {{"stable", 1}}};
  routing.awaited_labels = {{"next", 2}};
  ASSERT_TRUE(map.SetRouting("m", routing).ok());
  ExpectRefused(map, ByLabel("next"), Code::kNotFound,
                "Servable not found for request: Specific(m, 2), to which version label 'next' "
                "points; available versions: 1");
  ExpectRefused(map, ByLabel("gold"), Code::kInvalidArgument,
                "Unrecognized servable version label: gold; labels of model 'm': stable next; "
                "request one of them, a version, or neither");
  EXPECT_FALSE(Routing({{}, {}, {}, 0, {}, {{"next", 2}}}).IsDefault());
}

TEST(ServingMapRouting, IsKeptWhileNoVersionIsPublished) {
  ServingMap map;
  ASSERT_TRUE(map.SetRouting("m", {1, {{"stable", 1}}}).ok());
  ExpectRefused(map, {}, Code::kNotFound,
                "Servable not found for request: Latest(m); available versions: none");
  ExpectRefused(map, {1}, Code::kNotFound,
                "Servable not found for request: Specific(m, 1); available versions: none");
  EXPECT_EQ(map.LookUp("n", {}).status().message(),
            "Servable not found for request: Latest(n); available models: none");
  EXPECT_TRUE(map.Versions("m").empty());
  const auto routing = [] { return Routing{1, {{"stable", 1}}}; };
  ASSERT_TRUE(map.Publish(MakeFakeEntry("m", 1), routing()).ok());
  ASSERT_TRUE(map.Retire("m", 1, routing()).ok());
  ExpectRefused(map, {1}, Code::kNotFound,
                "Servable not found for request: Specific(m, 1); available versions: none");
  ASSERT_TRUE(map.Publish(MakeFakeEntry("m", 1), routing()).ok());
  EXPECT_EQ(AnsweringVersion(map, {}), 1);
  EXPECT_EQ(AnsweringVersion(map, ByLabel("stable")), 1);
}

TEST(ServingMapRouting, TheDefaultRoutingForgetsIt) {
  ServingMap map;
  ASSERT_TRUE(map.SetRouting("m", {1, {{"stable", 1}}}).ok());
  ASSERT_TRUE(map.SetRouting("m", {}).ok());
  EXPECT_EQ(map.LookUp("m", {}).status().message(),
            "Servable not found for request: Latest(m); available models: none");
  PublishVersions(map, 1, 2);
  ASSERT_TRUE(map.SetRouting("m", {1}).ok());
  ASSERT_TRUE(map.SetRouting("m", {}).ok());
  EXPECT_EQ(AnsweringVersion(map, {}), -1);
}

TEST(ServingMapRouting, OfOneNameIsNotThatOfAnother) {
  ServingMap map;
  PublishVersions(map, 1, 2);
  ASSERT_TRUE(PublishHighest(map, MakeFakeEntry("n", 1)).ok());
  ASSERT_TRUE(PublishHighest(map, MakeFakeEntry("n", 2)).ok());
  ASSERT_TRUE(map.SetRouting("n", {1}).ok());
  EXPECT_EQ(LookedUpVersion(map, "m"), 2);
  EXPECT_EQ(LookedUpVersion(map, "n"), 1);
}

TEST(ServingMapRouting, AWrongOneIsRefusedAndChangesNothing) {
  ServingMap map;
  PublishVersions(map, 1, 2);
  ASSERT_TRUE(map.SetRouting("m", {1}).ok());
  EXPECT_EQ(map.SetRouting("m", {2, {}, 2, 1.5}).code(), Code::kInvalidArgument);
  EXPECT_EQ(map.SetRouting("m", {2, {}, 2, 0.5, "User"}).code(), Code::kInvalidArgument);
  EXPECT_EQ(AnsweringVersion(map, {}), 1);
}

TEST(ServingMapRouting, CanaryAnswersItsShareOfUnversionedRequests) {
  ServingMap map;
  PublishVersions(map, 1, 3);
  ASSERT_TRUE(map.SetRouting("m", {1, {{"next", 3}}, 2, 1}).ok());
  const FakeMetadata metadata;
  EXPECT_EQ(AnsweringVersion(map, {{}, {}, &metadata}), 2);
  EXPECT_EQ(AnsweringVersion(map, {1, {}, &metadata}), 1);
  EXPECT_EQ(AnsweringVersion(map, {{}, "next", &metadata}), 3);
  EXPECT_EQ(AnsweringVersion(map, {{}, {}, nullptr}), 1);
  ASSERT_TRUE(map.SetRouting("m", {1, {}, 2, 0}).ok());
  EXPECT_EQ(AnsweringVersion(map, {{}, {}, &metadata}), 1);
}

TEST(ServingMapRouting, ACanaryThatIsNotPublishedGetsNothing) {
  ServingMap map;
  PublishVersions(map, 1, 2);
  const auto routing = [] { return Routing{1, {}, 3, 1}; };
  ASSERT_TRUE(map.SetRouting("m", routing()).ok());
  const FakeMetadata metadata;
  EXPECT_EQ(AnsweringVersion(map, {{}, {}, &metadata}), 1);
  ASSERT_TRUE(map.Publish(MakeFakeEntry("m", 3), routing()).ok());
  EXPECT_EQ(AnsweringVersion(map, {{}, {}, &metadata}), 3);
}

TEST(ServingMapRouting, AValueOfTheCanarysHeaderIsAnsweredByOneVersion) {
  ServingMap map;
  PublishVersions(map, 1, 2);
  ASSERT_TRUE(map.SetRouting("m", {1, {}, 2, 0.5, "user-id"}).ok());
  std::vector<int64_t> answered_count(3);
  for (int user = 0; user < 100; ++user) {
    const FakeMetadata metadata("user-id", "user-" + std::to_string(user));
    const int64_t version = AnsweringVersion(map, {{}, {}, &metadata});
    answered_count[version] += 1;
    for (int again = 0; again < 10; ++again) {
      ASSERT_EQ(AnsweringVersion(map, {{}, {}, &metadata}), version);
    }
  }
  EXPECT_GT(answered_count[1], 0);
  EXPECT_GT(answered_count[2], 0);
}

TEST(ServingMapRouting, MetadataIsReadOnlyForACanaryThatUsesIt) {
  ServingMap map;
  PublishVersions(map, 1, 2);
  const FakeMetadata metadata("user-id", "user-1");
  const auto ask = [&](const Routing& routing, const VersionChoice& choice) {
    ASSERT_TRUE(map.SetRouting("m", routing).ok());
    ASSERT_TRUE(map.LookUp("m", choice).ok());
  };
  ask({1}, {{}, {}, &metadata});
  ask({1, {}, 3, 1, "user-id"}, {{}, {}, &metadata});           // not published
  ask({1, {}, 2, 0, "user-id"}, {{}, {}, &metadata});           // no weight
  ask({1, {}, 2, 1, "user-id"}, {1, {}, &metadata});            // by version
  ask({1, {{"a", 1}}, 2, 1, "user-id"}, {{}, "a", &metadata});  // by label
  EXPECT_EQ(metadata.read_count(), 0);
  ask({1, {}, 2, 1, "user-id"}, {{}, {}, &metadata});
  EXPECT_EQ(metadata.read_count(), 1);
}

// Default, label and canary move together: no request sees the new one of one and then the old one
// of another.
TEST(ServingMapRouting, AChangeIsSeenAllAtOnce) {
  constexpr int64_t kVersionCount = 300;
  ServingMap map;
  PublishVersions(map, 1, kVersionCount);
  const auto route_to = [&](int64_t version) {
    ASSERT_TRUE(map.SetRouting("m", {version, {{"stable", version}}, version, 0.5}).ok());
  };
  route_to(1);
  testing::RunTogether(4, [&](int thread) {
    for (int64_t version = 2; thread == 0 && version <= kVersionCount; ++version) route_to(version);
    const FakeMetadata metadata;
    int64_t last = 0;
    while (thread != 0 && last < kVersionCount) {
      for (const VersionChoice& choice :
           {VersionChoice(), ByLabel("stable"), VersionChoice{{}, {}, &metadata}}) {
        const int64_t version = AnsweringVersion(map, choice);
        ASSERT_GE(version, last);
        last = version;
      }
      // There are fewer cores than readers: a look-up should not be preempted.
      std::this_thread::yield();
    }
  });
}

// A rollback and the next version under load. The canary comes and goes, and the default version is
// restored. Every request finds a version.
TEST(ServingMapRouting, NoRequestFailsWhileVersionsAndRoutingChange) {
  ServingMap map;
  PublishVersions(map, 1, 2);
  std::atomic<bool> is_over{false};
  testing::RunTogether(4, [&](int thread) {
    for (int64_t canary = 3; thread == 0 && canary < 500; ++canary) {
      const auto entry = MakeFakeEntry("m", canary);
      const int64_t stable = 1 + canary % 2;
      ASSERT_TRUE(map.Publish(entry, Routing{stable, {}, canary, 0.5, "user-id"}).ok());
      ASSERT_TRUE(map.Retire("m", canary, Routing{stable}).ok());
      ASSERT_TRUE(entry->Quiesce(kForeverNs).value());
      ASSERT_TRUE(entry->Destroy().ok());
    }
    if (thread == 0) is_over = true;
    const FakeMetadata metadata("user-id", std::to_string(thread));
    while (!is_over) {
      const auto handle = map.LookUp("m", {{}, {}, &metadata});
      ASSERT_TRUE(handle.ok()) << handle.status().message();
      ASSERT_TRUE(static_cast<const WatchedServable&>(*handle.value()).IsWhole());
      std::this_thread::yield();
    }
  });
}

// --- threads ---

// Readers look versions up while they are swapped. No reader sees a version that is gone or
// destroyed, and no reader destroys one.
TEST(ServingMap, SwapsNeverShowReadersADestroyedServable) {
  constexpr int kSwapCount = 2'000;
  std::vector<FakeServableFate> fates(kSwapCount);
  ServingMap map;
  std::atomic<bool> is_over{false};
  std::thread::id writer_id;
  const auto read_on = [&] {
    int64_t last_version = 0;
    while (!is_over) {
      const auto handle = map.LookUp("m", {});
      ASSERT_TRUE(handle.ok()) << handle.status().message();
      const int64_t version = handle.value()->id().version;
      ASSERT_GE(version, last_version);
      last_version = version;
      ASSERT_TRUE(static_cast<const WatchedServable&>(*handle.value()).IsWhole());
      // There are fewer cores than readers: a look-up should not be preempted.
      std::this_thread::yield();
    }
  };
  std::shared_ptr<ServableEntry> serving = MakeFakeEntry("m", 0, &fates[0]);
  ASSERT_TRUE(PublishHighest(map, serving).ok());
  testing::RunTogether(4, [&](int thread) {
    if (thread != 0) return read_on();
    writer_id = std::this_thread::get_id();
    for (int version = 1; version < kSwapCount; ++version) {
      auto next = MakeFakeEntry("m", version, &fates[version]);
      ASSERT_TRUE(PublishHighest(map, next).ok());
      Unload(map, *serving);
      EXPECT_FALSE(fates[version - 1].is_alive);
      serving = std::move(next);
    }
    is_over = true;
  });
  for (int version = 0; version + 1 < kSwapCount; ++version) {
    ASSERT_EQ(fates[version].destroyed_by, writer_id) << version;
  }
}

// The look-up of a version that is being retired either pins it before Retire returns, or fails.
TEST(ServingMap, OnceRetireReturnsNoLookUpPinsTheVersion) {
  ServingMap map;
  std::atomic<int> retired_version{0};
  std::atomic<bool> is_over{false};
  testing::RunTogether(4, [&](int thread) {
    for (int version = 1; thread == 0 && version <= 2'000; ++version) {
      const auto entry = MakeFakeEntry("m", version);
      ASSERT_TRUE(PublishHighest(map, entry).ok());
      ASSERT_TRUE(RetireVersion(map, "m", version).ok());
      retired_version = version;
      ASSERT_TRUE(entry->Quiesce(kForeverNs).value());
      ASSERT_EQ(entry->handle_count(), 0);
      ASSERT_TRUE(entry->Destroy().ok());
    }
    if (thread == 0) is_over = true;
    while (!is_over) {
      const int retired_before = retired_version;
      const auto handle = map.LookUp("m", {});
      if (handle.ok()) {
        ASSERT_GT(handle.value()->id().version, retired_before);
      }
      std::this_thread::yield();
    }
  });
}

TEST(ServingMap, TwoWritersAtOnceLoseNothing) {
  ServingMap map;
  testing::RunTogether(2, [&](int thread) {
    const std::string name = "m" + std::to_string(thread);
    for (int version = 0; version < 200; ++version) {
      ASSERT_TRUE(PublishHighest(map, MakeFakeEntry(name, version)).ok());
    }
  });
  EXPECT_EQ(map.Versions("m0").size(), 200);
  EXPECT_EQ(map.Versions("m1").size(), 200);
}

// --- Notes ---------------------------------------------------------------------------------------

ModelNotes Loading() {
  return {"version 3 is loading", true, {{3, {"version 3 is loading", true}}}};
}

TEST(ServingMapNotes, AMissingVersionsReasonEndsTheMessage) {
  ServingMap map;
  map.SetNotes("m", {"base path holds no version directory", false, {}});
  ExpectRefused(map, {}, Code::kNotFound,
                "Servable not found for request: Latest(m); available versions: none; base path "
                "holds no version directory");
}

TEST(ServingMapNotes, AVersionHasItsOwnReason) {
  ServingMap map;
  PublishVersions(map, 2, 2);
  map.SetNotes("m", {"", false, {{3, {"version 3 failed: no such op", false}}}});
  ExpectRefused(map, {3}, Code::kNotFound,
                "Servable not found for request: Specific(m, 3); available versions: 2; version 3 "
                "failed: no such op");
}

TEST(ServingMapNotes, AnAwaitedVersionIsUnavailable) {
  ServingMap map;
  map.SetNotes("m", Loading());
  const std::string message = "model 'm': version 3 is loading";
  ExpectRefused(map, {}, Code::kUnavailable, message);
  ExpectRefused(map, {3}, Code::kUnavailable, message);
  ExpectRefused(map, ByLabel("stable"), Code::kUnavailable, message);
  EXPECT_EQ(map.LookUp("m", {4}).status().code(), Code::kNotFound);
}

TEST(ServingMapNotes, ARefusedModelIsUnavailableAndNotAwaited) {
  ServingMap map;
  map.SetNotes("m", {"version 3 is blocked", false, {{3, {"version 3 is blocked"}}}, true});
  const std::string message = "model 'm': version 3 is blocked";
  ExpectRefused(map, {}, Code::kUnavailable, message);
  ExpectRefused(map, {3}, Code::kUnavailable, message);
  EXPECT_TRUE(map.Refuses("m"));
  map.SetNotes("m", Loading());
  EXPECT_FALSE(map.Refuses("m"));
}

TEST(ServingMapNotes, ForgottenNotesLeaveTheNameUnknown) {
  ServingMap map;
  map.SetNotes("m", Loading());
  map.SetNotes("m", {});
  ExpectRefused(map, {}, Code::kNotFound,
                "Servable not found for request: Latest(m); available models: none");
}

TEST(ServingMapNotes, APublishedVersionAnswersDespiteNotes) {
  ServingMap map;
  PublishVersions(map, 3, 3);
  map.SetNotes("m", Loading());
  EXPECT_TRUE(map.LookUp("m", {}).ok());
  EXPECT_TRUE(map.LookUp("m", {3}).ok());
}

TEST(ServingMapNotes, AChangeComesWithAVersionAndWithItsFailure) {
  ServingMap map;
  map.SetNotes("m", Loading());
  const AwaitedChange loading = map.MarkChange("m");
  map.SetNotes("m", Loading());
  EXPECT_FALSE(loading.HasCome());
  map.SetNotes("m", {"version 3 failed", false, {}});
  EXPECT_TRUE(loading.HasCome());
  const AwaitedChange failed = map.MarkChange("m");
  PublishVersions(map, 4, 4);
  EXPECT_TRUE(failed.HasCome());
}

TEST(ServingMapNotes, AChangeComesWhenTheModelIsForgotten) {
  ServingMap map;
  map.SetNotes("m", Loading());
  const AwaitedChange loading = map.MarkChange("m");
  map.SetNotes("m", {});
  EXPECT_TRUE(loading.HasCome());
}

TEST(ServingMapNotes, AChangeComesWhenOneOfTwoVersionsFails) {
  ServingMap map;
  ModelNotes both = Loading();
  both.versions[4] = {"version 4 is loading", true};
  map.SetNotes("m", both);
  const AwaitedChange loading = map.MarkChange("m");
  both.versions[4] = {"version 4 failed", false};
  map.SetNotes("m", both);
  EXPECT_TRUE(loading.HasCome());
  EXPECT_EQ(map.LookUp("m", {}).status().code(), Code::kUnavailable);
  EXPECT_EQ(map.LookUp("m", {4}).status().code(), Code::kNotFound);
}

TEST(ServingMapNotes, AnyVersionIsAwaitedBeforeTheBasePathIsRead) {
  ServingMap map;
  map.SetNotes("m", {"not read yet", true, {}});
  const AwaitedChange unread = map.MarkChange("m");
  ExpectRefused(map, {4}, Code::kUnavailable, "model 'm': not read yet");
  map.SetNotes("m", Loading());
  EXPECT_TRUE(unread.HasCome());
  EXPECT_EQ(map.LookUp("m", {4}).status().code(), Code::kNotFound);
}

TEST(ServingMapNotes, AnotherModelsChangeDoesNotCome) {
  ServingMap map;
  const AwaitedChange loading = map.MarkChange("m");
  map.SetNotes("other", Loading());
  map.SetNotes("other", {});
  EXPECT_FALSE(loading.HasCome());
}

}  // namespace
}  // namespace millpond::servable
