#include "native/pjrt/device_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace millpond::pjrt {
namespace {

using base::Code;

CopyState Copy(const std::string& model, int64_t bytes, int64_t run_bytes, bool is_idle,
               int64_t last_use_ns) {
  return {model, bytes, run_bytes, is_idle, last_use_ns};
}

TEST(ChooseDroppedTest, ACopyThatFitsDropsNothing) {
  const auto dropped =
      ChooseDropped({100, {}}, {Copy("a", 40, 10, true, 1), Copy("b", 40, 20, false, 9)});
  EXPECT_EQ(dropped, std::vector<size_t>{});
}

TEST(ChooseDroppedTest, TheLargestRunMustFitBesideTheCopies) {
  const std::vector<CopyState> copies = {Copy("a", 40, 10, false, 1), Copy("b", 40, 21, false, 9)};
  EXPECT_EQ(ChooseDropped({100, {}}, copies), std::nullopt);
  EXPECT_EQ(ChooseDropped({101, {}}, copies), std::vector<size_t>{});
}

TEST(ChooseDroppedTest, TheLongestIdleCopyGoesFirst) {
  const auto dropped =
      ChooseDropped({100, {}}, {Copy("a", 40, 0, true, 5), Copy("b", 40, 0, true, 3),
                                Copy("c", 10, 0, false, 1), Copy("d", 40, 0, false, 9)});
  EXPECT_EQ(dropped, std::vector<size_t>{1});
}

TEST(ChooseDroppedTest, AnEarlierOneStaysIfALaterOneIsEnough) {
  const auto dropped = ChooseDropped(
      {100, {}},
      {Copy("a", 10, 0, true, 1), Copy("b", 70, 0, true, 2), Copy("c", 80, 0, false, 9)});
  EXPECT_EQ(dropped, std::vector<size_t>{1});
}

// The table of 50 stays for the newcomer, so the copy that has it too makes no room for it.
TEST(ChooseDroppedTest, APartThatTwoCopiesHaveCountsOnce) {
  std::vector<CopyState> copies = {Copy("a", 20, 0, true, 1), Copy("a", 30, 0, false, 9)};
  for (CopyState& copy : copies) copy.parts = {{7, 50}};
  EXPECT_EQ(ChooseDropped({100, {}}, copies), std::vector<size_t>{});
  EXPECT_EQ(ChooseDropped({99, {}}, copies), std::vector<size_t>{0});
  EXPECT_EQ(ChooseDropped({79, {}}, copies), std::nullopt);
}

TEST(ChooseDroppedTest, AQuotaIsForTheModelsOwnCopies) {
  const MemoryBounds bounds{1'000, {{"a", 100}}};
  const std::vector<CopyState> copies = {Copy("b", 90, 0, true, 1), Copy("a", 60, 0, true, 2),
                                         Copy("a", 60, 5, false, 9)};
  EXPECT_EQ(ChooseDropped(bounds, copies), std::vector<size_t>{1});
}

// Some of the three parts that versions of a model have in common.
std::vector<SharedPart> SomeParts(const std::string& model, std::mt19937* random) {
  std::vector<SharedPart> parts;
  for (int64_t i = 0; i < 3; ++i) {
    if ((*random)() % 3 == 0) parts.push_back({model == "a" ? i : 3 + i, 7 + 11 * i});
  }
  return parts;
}

bool FitsWithout(const MemoryBounds& bounds, const std::vector<CopyState>& copies,
                 const std::vector<size_t>& dropped) {
  int64_t all = 0;
  int64_t all_run = 0;
  int64_t own = 0;
  int64_t own_run = 0;
  std::map<int64_t, int64_t> parts;  // a part belongs to one model
  std::map<int64_t, int64_t> own_parts;
  for (size_t i = 0; i < copies.size(); ++i) {
    if (std::find(dropped.begin(), dropped.end(), i) != dropped.end()) continue;
    all += copies[i].bytes;
    all_run = std::max(all_run, copies[i].run_bytes);
    for (const SharedPart& part : copies[i].parts) parts[part.id] = part.bytes;
    if (copies[i].model != copies.back().model) continue;
    own += copies[i].bytes;
    own_run = std::max(own_run, copies[i].run_bytes);
    for (const SharedPart& part : copies[i].parts) own_parts[part.id] = part.bytes;
  }
  for (const auto& [id, bytes] : parts) all += bytes;
  for (const auto& [id, bytes] : own_parts) own += bytes;
  return all + all_run <= bounds.limit_bytes &&
         own + own_run <= bounds.QuotaOf(copies.back().model);
}

// The promises at ChooseDropped, over random copies.
TEST(ChooseDroppedTest, DropsWhatItMustAndNoMore) {
  std::mt19937 random(11);  // NOLINT(cert-msc51-cpp): the same sequence in each run
  int dropped_count = 0;
  int refused_count = 0;
  for (int round = 0; round < 20'000; ++round) {
    MemoryBounds bounds{static_cast<int64_t>(random() % 200), {}};
    if (random() % 2 == 0) bounds.quotas["a"] = static_cast<int64_t>(random() % 150);
    std::vector<CopyState> copies;
    for (size_t i = 0, count = 1 + random() % 6; i < count; ++i) {
      copies.push_back(Copy(random() % 2 == 0 ? "a" : "b", static_cast<int64_t>(random() % 60),
                            static_cast<int64_t>(random() % 20), random() % 3 > 0,
                            static_cast<int64_t>(random() % 8)));
      copies.back().parts = SomeParts(copies.back().model, &random);
    }
    std::vector<size_t> all_idle;
    for (size_t i = 0; i + 1 < copies.size(); ++i) {
      if (copies[i].is_idle) all_idle.push_back(i);
    }
    const auto dropped = ChooseDropped(bounds, copies);
    if (!dropped) {
      ++refused_count;
      ASSERT_FALSE(FitsWithout(bounds, copies, all_idle));
      continue;
    }
    ASSERT_TRUE(FitsWithout(bounds, copies, *dropped));
    for (const size_t index : *dropped) {
      ++dropped_count;
      ASSERT_TRUE(copies[index].is_idle && index + 1 < copies.size());
      std::vector<size_t> others = *dropped;
      others.erase(std::find(others.begin(), others.end(), index));
      ASSERT_FALSE(FitsWithout(bounds, copies, others)) << "a copy was dropped without need";
    }
  }
  EXPECT_GT(dropped_count, 1'000);
  EXPECT_GT(refused_count, 1'000);
}

// A version of the model below: it holds its copy, and runs may pin it.
class Version final : public DeviceMemory::Owner {
 public:
  Version(DeviceMemory* memory, std::string model, int64_t bytes, int64_t run_bytes,
          std::vector<SharedPart> parts = {})
      : memory_(memory),
        model_(std::move(model)),
        bytes_(bytes),
        run_bytes_(run_bytes),
        parts_(std::move(parts)) {}
  ~Version() { memory_->Forget(this); }

  int64_t last_use_ns() const override { return last_use_ns_; }
  bool IsInUse() const override { return copy_.use_count() > 1; }
  std::shared_ptr<const void> TakeOut() override {
    if (copy_ == nullptr || copy_.use_count() > 1) return nullptr;
    return std::exchange(copy_, nullptr);
  }

  bool Upload(int64_t now_ns) {
    auto charge = memory_->ChargeCopy(model_, bytes_, run_bytes_, this, now_ns, parts_);
    if (!charge.ok()) return false;
    copy_ = std::make_shared<DeviceMemory::CopyCharge>(std::move(charge.value()));
    last_use_ns_ = now_ns;
    return true;
  }
  std::shared_ptr<DeviceMemory::CopyCharge> Pin(int64_t now_ns) {
    if (copy_ != nullptr) last_use_ns_ = now_ns;
    return copy_;
  }
  bool is_there() const { return copy_ != nullptr; }
  const std::string& model() const { return model_; }
  int64_t bytes() const { return bytes_; }
  int64_t run_bytes() const { return run_bytes_; }
  const std::vector<SharedPart>& parts() const { return parts_; }

 private:
  DeviceMemory* const memory_;
  const std::string model_;
  const int64_t bytes_;
  const int64_t run_bytes_;
  const std::vector<SharedPart> parts_;
  int64_t last_use_ns_ = 0;
  std::shared_ptr<DeviceMemory::CopyCharge> copy_;
};

// A run under way: it pins a copy, and has its charge.
struct RunUnderWay {
  std::string model;
  int64_t bytes;
  std::shared_ptr<DeviceMemory::CopyCharge> pin;
  DeviceMemory::RunCharge charge;
};

// Random loads, retirements, rollbacks and runs. After each step the charges are those of a model
// of bytes, no bound is exceeded, and no copy that a run uses is gone.
TEST(DeviceMemoryTest, ChargesAreThoseOfAModelOfBytes) {
  std::mt19937 random(5);  // NOLINT(cert-msc51-cpp): the same sequence in each run
  int64_t dropped_count = 0;
  int64_t refused_runs = 0;
  for (int round = 0; round < 2000; ++round) {
    const int64_t limit = 100 + static_cast<int64_t>(random() % 200);
    DeviceMemory memory(limit);
    const int64_t quota = 60 + static_cast<int64_t>(random() % 200);
    memory.SetQuota("a", quota);
    int64_t now_ns = DeviceMemory::kIdleNs;
    std::vector<std::unique_ptr<Version>> versions;
    std::deque<RunUnderWay> runs;
    for (int step = 0; step < 60; ++step) {
      now_ns += static_cast<int64_t>(random() % DeviceMemory::kIdleNs);
      const size_t pick = versions.empty() ? 0 : random() % versions.size();
      switch (random() % 5) {
        case 0: {  // a load; runs under way would only be waited for
          runs.clear();
          const int64_t there = std::count_if(versions.begin(), versions.end(),
                                              [](const auto& v) { return v->is_there(); });
          const std::string model = random() % 2 == 0 ? "a" : "b";
          versions.push_back(std::make_unique<Version>(
              &memory, model, 1 + static_cast<int64_t>(random() % 60),
              static_cast<int64_t>(random() % 30), SomeParts(model, &random)));
          const bool is_loaded = versions.back()->Upload(now_ns);
          const int64_t left = std::count_if(versions.begin(), versions.end(),
                                             [](const auto& v) { return v->is_there(); });
          dropped_count += there + (is_loaded ? 1 : 0) - left;
          break;
        }
        case 1:  // a retirement, once no run uses the version
          runs.clear();
          if (!versions.empty()) versions.erase(versions.begin() + static_cast<int64_t>(pick));
          break;
        case 2:  // a rollback
          if (!versions.empty() && !versions[pick]->is_there()) {
            runs.clear();
            versions[pick]->Upload(now_ns);
          }
          break;
        case 3:  // a run begins
          if (!versions.empty()) {
            Version& version = *versions[pick];
            auto pin = version.Pin(now_ns);
            if (pin == nullptr) break;
            auto charge = memory.ChargeRun(version.model(), version.run_bytes());
            ASSERT_TRUE(charge || !runs.empty()) << "a run that is alone finds its memory";
            refused_runs += charge ? 0 : 1;
            if (charge) {
              runs.push_back(
                  {version.model(), version.run_bytes(), std::move(pin), std::move(charge)});
            }
          }
          break;
        default:
          if (!runs.empty()) runs.pop_front();
      }
      std::map<std::string, std::pair<int64_t, int64_t>> expected;
      std::map<std::string, std::map<int64_t, int64_t>> parts;
      for (const auto& version : versions) {
        if (!version->is_there()) continue;
        expected[version->model()].first += version->bytes();
        for (const SharedPart& part : version->parts()) {
          parts[version->model()][part.id] = part.bytes;
        }
      }
      for (const auto& [model, its_parts] : parts) {
        for (const auto& [id, bytes] : its_parts) expected[model].first += bytes;
      }
      for (const RunUnderWay& run : runs) expected[run.model].second += run.bytes;
      int64_t all = 0;
      for (const std::string model : {"a", "b"}) {
        ASSERT_EQ(memory.ChargedBytes(model), expected[model]) << "of model " << model;
        all += expected[model].first + expected[model].second;
      }
      ASSERT_LE(all, limit);
      ASSERT_LE(expected["a"].first + expected["a"].second, quota);
    }
    runs.clear();
  }
  EXPECT_GT(dropped_count, 100);
  EXPECT_GT(refused_runs, 100);
}

TEST(DeviceMemoryTest, ANewcomerThatCannotFitDropsNothing) {
  DeviceMemory memory(100);
  Version idle(&memory, "a", 40, 0);
  Version used(&memory, "b", 40, 0);
  ASSERT_TRUE(idle.Upload(0) && used.Upload(1));
  const auto pin = used.Pin(1);
  Version large(&memory, "c", 90, 0);
  EXPECT_FALSE(large.Upload(2 * DeviceMemory::kIdleNs));
  EXPECT_TRUE(idle.is_there());
  Version fitting(&memory, "c", 60, 0);
  EXPECT_TRUE(fitting.Upload(2 * DeviceMemory::kIdleNs));
  EXPECT_FALSE(idle.is_there());
}

TEST(DeviceMemoryTest, RunsOfNoBytesAreReturned) {
  DeviceMemory memory(100);
  {
    const DeviceMemory::RunCharge first = memory.ChargeRun("a", 0);
    const DeviceMemory::RunCharge second = memory.ChargeRun("a", 0);
    EXPECT_TRUE(first && second);
  }
  EXPECT_EQ(memory.ChargedBytes("a"), (std::pair<int64_t, int64_t>(0, 0)));
}

TEST(DeviceMemoryTest, ARefusalSaysHowMuchIsMissing) {
  DeviceMemory memory(10);
  Version version(&memory, "a", 11, 3);
  const auto charged = memory.ChargeCopy("a", 11, 3, &version, 0);
  EXPECT_EQ(charged.status().code(), Code::kResourceExhausted);
  EXPECT_NE(charged.status().message().find("11 bytes"), std::string::npos);
}

}  // namespace
}  // namespace millpond::pjrt
