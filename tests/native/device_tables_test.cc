// Versions of a model on an accelerator have those tables in common that are equal.
#include "native/pjrt/device_tables.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "native/pjrt/accelerator.h"
#include "native/pjrt/device_parameters.h"
#include "native/pjrt/plugin.h"
#include "tests/native/fake_pjrt_plugin.h"

namespace millpond::pjrt {
namespace {

constexpr int64_t kRowCount = 64;
constexpr int64_t kWidth = 4;
constexpr int64_t kTableBytes = kRowCount * kWidth * 4;

// The value of all elements of a row, by what the row should be.
float ValueOf(const std::string& base, int64_t row) {
  return static_cast<float>(std::hash<std::string>()(base) % 1000) + static_cast<float>(row) / 64;
}

// A table on the host, and what is known of it.
struct HostTable {
  HostTable(const std::string& base, const std::vector<int64_t>& changed_rows, float change) {
    for (int64_t row = 0; row < kRowCount; ++row) {
      for (int64_t i = 0; i < kWidth; ++i) elements.push_back(ValueOf(base, row));
    }
    for (const int64_t row : changed_rows) {
      for (int64_t i = 0; i < kWidth; ++i) elements[row * kWidth + i] = change;
    }
    contents = std::make_shared<const TableContents>(TableContents{base, changed_rows});
  }
  HostTensor tensor() const {
    return {PJRT_Buffer_Type_F32, {kRowCount, kWidth}, elements.data(), kTableBytes, contents};
  }

  std::vector<float> elements;
  std::shared_ptr<const TableContents> contents;
};

// A version of a model: some tables, and a tensor of its own.
class TableVersion {
 public:
  TableVersion(std::shared_ptr<const Accelerator> accelerator, const std::string& model,
               std::vector<HostTable> tables, float own)
      : accelerator_(std::move(accelerator)), tables_(std::move(tables)), own_(own) {
    std::vector<HostTensor> tensors;
    for (const HostTable& table : tables_) tensors.push_back(table.tensor());
    tensors.push_back({PJRT_Buffer_Type_F32, {1}, &own_, sizeof(own_)});
    parameters_ = std::make_unique<DeviceParameters>(accelerator_, model, tensors);
  }

  DeviceParameters& parameters() { return *parameters_; }
  const std::vector<HostTable>& tables() const { return tables_; }

  // Expects that the device has the version's bytes. Returns the buffers of the tables.
  std::vector<const void*> ExpectThere() {
    std::vector<const void*> buffers;
    const auto copy = parameters_->Pin();
    EXPECT_NE(copy, nullptr);
    if (copy == nullptr) return buffers;
    for (size_t i = 0; i <= tables_.size(); ++i) {
      const bool is_own = i == tables_.size();
      const std::vector<float> expected = is_own ? std::vector{own_} : tables_[i].elements;
      std::vector<float> there(expected.size());
      MILLPOND_PJRT_ARGS(PJRT_Buffer_ToHostBuffer, read);
      read.src = copy->buffer(i);
      read.dst = there.data();
      read.dst_size = there.size() * sizeof(float);
      EXPECT_EQ(accelerator_->api()->PJRT_Buffer_ToHostBuffer(&read), nullptr);
      EXPECT_TRUE(accelerator_->api().Await(read.event, "").ok());
      EXPECT_EQ(there, expected) << "tensor " << i;
      if (!is_own) buffers.push_back(copy->buffer(i));
    }
    return buffers;
  }

 private:
  const std::shared_ptr<const Accelerator> accelerator_;
  const std::vector<HostTable> tables_;
  const float own_;
  std::unique_ptr<DeviceParameters> parameters_;
};

class DeviceTablesTest : public ::testing::Test {
 protected:
  DeviceTablesTest()
      : controls_(reinterpret_cast<FakePjrtControls* (*)()>(
            dlsym(dlopen(FAKE_PJRT_PLUGIN, RTLD_NOW), "FakePjrtControlsOf"))()) {
    *controls_ = {};
    Open();
  }
  ~DeviceTablesTest() override {
    accelerator_.reset();
    EXPECT_EQ(controls_->live_buffers, 0);
    EXPECT_EQ(controls_->live_errors, 0);
    EXPECT_EQ(controls_->misuse_count, 0);
    *controls_ = {};
  }

  void Open(int64_t memory_bytes_max = 0) {
    AcceleratorOptions options;
    options.idle_ns = 0;
    options.memory_bytes_max = memory_bytes_max;
    accelerator_ =
        Accelerator::MakeAll(Plugin::Open(FAKE_PJRT_PLUGIN).value(), options).value().front();
  }
  std::unique_ptr<TableVersion> Make(std::vector<HostTable> tables, float own = 1,
                                     const std::string& model = "m") {
    return std::make_unique<TableVersion>(accelerator_, model, std::move(tables), own);
  }
  int64_t charged(const std::string& model = "m") const {
    return accelerator_->memory().ChargedBytes(model).first;
  }

  FakePjrtControls* const controls_;
  std::shared_ptr<Accelerator> accelerator_;
};

TEST_F(DeviceTablesTest, AnEqualTableIsShared) {
  auto before = Make({{"a", {}, 0}, {"b", {}, 0}});
  auto after = Make({{"a", {}, 0}, {"c", {}, 0}}, 2);
  ASSERT_TRUE(before->parameters().Upload(0).ok() && after->parameters().Upload(0).ok());
  EXPECT_EQ(after->parameters().figures().uploaded_bytes, kTableBytes + 4);
  EXPECT_EQ(charged(), 3 * kTableBytes + 8);
  const auto before_buffers = before->ExpectThere();
  const auto after_buffers = after->ExpectThere();
  EXPECT_EQ(before_buffers[0], after_buffers[0]);
  EXPECT_NE(before_buffers[1], after_buffers[1]);
  before.reset();
  EXPECT_EQ(charged(), 2 * kTableBytes + 4);
  EXPECT_EQ(after->ExpectThere(), after_buffers) << "the table stays for the other version";
  after.reset();
  EXPECT_EQ(charged(), 0);
}

TEST_F(DeviceTablesTest, ATableWithChangedRowsIsNotShared) {
  auto before = Make({{"a", {3}, 5}});
  auto after = Make({{"a", {3}, 6}});
  ASSERT_TRUE(before->parameters().Upload(0).ok() && after->parameters().Upload(0).ok());
  EXPECT_NE(before->ExpectThere(), after->ExpectThere());
}

TEST_F(DeviceTablesTest, ModelsShareNothing) {
  auto one = Make({{"a", {}, 0}});
  auto other = Make({{"a", {}, 0}}, 1, "other");
  ASSERT_TRUE(one->parameters().Upload(0).ok() && other->parameters().Upload(0).ok());
  EXPECT_EQ(charged(), kTableBytes + 4);
  EXPECT_EQ(charged("other"), kTableBytes + 4);
}

TEST_F(DeviceTablesTest, OneTableWithoutAnyOtherIsSentWhole) {
  auto before = Make({{"a", {}, 0}});
  ASSERT_TRUE(before->parameters().Upload(0).ok());
  before.reset();
  auto after = Make({{"a", {}, 0}});
  ASSERT_TRUE(after->parameters().Upload(0).ok());
  EXPECT_EQ(after->parameters().figures().uploaded_bytes, kTableBytes + 4);
  after->ExpectThere();
}

// A copy whose table is shared makes room for nothing but its own bytes.
TEST_F(DeviceTablesTest, AVersionThatSharesNeedsNoRoomForTheTable) {
  Open(kTableBytes + 8);
  auto before = Make({{"a", {}, 0}});
  auto after = Make({{"a", {}, 0}});
  ASSERT_TRUE(before->parameters().Upload(0).ok() && after->parameters().Upload(0).ok());
  EXPECT_TRUE(before->parameters().IsThere());
  auto third = Make({{"a", {}, 0}});
  ASSERT_TRUE(third->parameters().Upload(0).ok());
  EXPECT_FALSE(before->parameters().IsThere()) << "the one that was used the longest time ago";
  EXPECT_EQ(charged(), kTableBytes + 8);
}

// Random loads, ends, drops and failures of versions: the device always has a version's bytes, and
// the charge is that of each buffer, once.
TEST_F(DeviceTablesTest, RandomVersionsHaveTheirBytesThere) {
  int64_t shared_count = 0;
  for (uint32_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const auto draw = [&](size_t end) { return random() % end; };
    Open(static_cast<int64_t>(2 + draw(8)) * (kTableBytes + 4));
    std::vector<std::unique_ptr<TableVersion>> versions;
    for (int step = 0; step < 40 && !HasFailure(); ++step) {
      controls_->failing_copy = draw(4) == 0 ? static_cast<int64_t>(draw(3)) : -1;
      if (!versions.empty() && draw(3) == 0) {
        const auto index = static_cast<std::ptrdiff_t>(draw(versions.size()));
        if (draw(2) == 0) {
          static_cast<void>(versions[index]->parameters().Upload(0));
        } else {
          versions.erase(versions.begin() + index);
        }
      } else {
        std::vector<HostTable> tables;
        for (size_t i = 0, count = 1 + draw(3); i < count; ++i) {
          std::vector<int64_t> rows;
          if (draw(2) == 0) rows = {static_cast<int64_t>(draw(kRowCount))};
          tables.emplace_back("base" + std::to_string(draw(2)), rows, static_cast<float>(step));
        }
        versions.push_back(Make(std::move(tables), static_cast<float>(step)));
        static_cast<void>(versions.back()->parameters().Upload(0));
      }
      controls_->failing_copy = -1;
      std::set<const void*> buffers;
      int64_t expected_bytes = 0;
      for (const auto& version : versions) {
        if (!version->parameters().IsThere()) continue;
        expected_bytes += 4;
        for (const void* const buffer : version->ExpectThere()) {
          shared_count += buffers.insert(buffer).second ? 0 : 1;
        }
      }
      expected_bytes += static_cast<int64_t>(buffers.size()) * kTableBytes;
      EXPECT_EQ(charged(), expected_bytes);
      EXPECT_EQ(controls_->used_bytes, expected_bytes);
    }
  }
  EXPECT_GT(shared_count, 1'000);
}

}  // namespace
}  // namespace millpond::pjrt
