// Versions of a model on an accelerator have those tables in common that are equal. Of a table that
// differs in few rows, only these are sent.
#include "native/pjrt/device_tables.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "native/pjrt/accelerator.h"
#include "native/pjrt/device_parameters.h"
#include "native/pjrt/plugin.h"
#include "native/pjrt/row_scatter.h"
#include "tests/native/fake_pjrt_plugin.h"

namespace millpond::pjrt {
namespace {

constexpr int64_t kRowCount = 4096;
constexpr int64_t kWidth = 4;
constexpr int64_t kTableBytes = kRowCount * kWidth * 4;

// The elements of a table of which nothing is changed. Made once for each base, because the
// sanitizers look at each element.
const std::vector<float>& ElementsOf(const std::string& base) {
  static std::map<std::string, std::vector<float>> made;
  std::vector<float>& elements = made[base];
  if (!elements.empty()) return elements;
  const auto first = static_cast<float>(std::hash<std::string>()(base) % 1000);
  for (int64_t row = 0; row < kRowCount; ++row) {
    elements.insert(elements.end(), kWidth, first + static_cast<float>(row) / 64);
  }
  return elements;
}

// A table on the host, and what is known of it.
struct HostTable {
  HostTable(const std::string& base, const std::vector<int64_t>& changed_rows, float change)
      : elements(ElementsOf(base)) {
    for (const int64_t row : changed_rows) {
      for (int64_t i = 0; i < kWidth; ++i) elements[row * kWidth + i] = change;
    }
    contents = std::make_shared<const TableContents>(
        TableContents{"table", base, changed_rows, /*has_writer=*/true});
  }
  HostTensor tensor() const {
    return {PJRT_Buffer_Type_F32, {kRowCount, kWidth}, elements.data(), kTableBytes, contents};
  }

  std::vector<float> elements;
  std::shared_ptr<const TableContents> contents;
};

using ScatterPrograms = std::map<int64_t, std::shared_ptr<const Executable>>;

ScatterPrograms CompileScatters(const Accelerator& accelerator, const HostTensor& tensor) {
  ScatterPrograms programs;
  for (const int64_t rows : RowScatter::SizesFor(tensor)) {
    const std::string code = "scatter " + std::to_string(kRowCount) + " " + std::to_string(kWidth) +
                             " " + std::to_string(rows);
    programs[rows] = std::move(accelerator.Compile(code).value());
  }
  return programs;
}

RowScatters ScattersOf(ScatterPrograms programs, const HostTensor& tensor) {
  RowScatters scatters;
  scatters.Add(tensor, std::make_unique<RowScatter>(std::move(programs)));
  return scatters;
}

RowScatters Scatters(const Accelerator& accelerator, const std::vector<HostTable>& tables) {
  const HostTensor tensor = tables.front().tensor();
  return ScattersOf(CompileScatters(accelerator, tensor), tensor);
}

// The bytes of a step of the smallest program.
constexpr int64_t kSmallStepBytes = RowScatter::kSmallRows * (4 + kWidth * 4);

// `count` rows of a table, from `first` on.
std::vector<int64_t> Rows(int64_t count, int64_t first = 0) {
  std::vector<int64_t> rows(count);
  std::iota(rows.begin(), rows.end(), first);
  return rows;
}

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
  // Uploads the version, which may write rows.
  base::Status Upload() { return parameters_->Upload(0, Scatters(*accelerator_, tables_)); }
  int64_t uploaded_bytes() const { return parameters_->figures().uploaded_bytes; }
  const std::vector<HostTable>& tables() const { return tables_; }

  // Expects that the device has the version's bytes. Returns the buffers of the tables.
  std::vector<const void*> ExpectThere() {
    static std::array<std::byte, kTableBytes> there;
    std::vector<const void*> buffers;
    const auto copy = parameters_->Pin();
    EXPECT_NE(copy, nullptr);
    if (copy == nullptr) return buffers;
    for (size_t i = 0; i <= tables_.size(); ++i) {
      const bool is_own = i == tables_.size();
      const float* const expected = is_own ? &own_ : tables_[i].elements.data();
      const size_t bytes = is_own ? sizeof(own_) : kTableBytes;
      std::memset(there.data(), 0xff, bytes);
      MILLPOND_PJRT_ARGS(PJRT_Buffer_ToHostBuffer, read);
      read.src = copy->buffer(i);
      read.dst = there.data();
      read.dst_size = bytes;
      EXPECT_EQ(accelerator_->api()->PJRT_Buffer_ToHostBuffer(&read), nullptr);
      EXPECT_TRUE(accelerator_->api().Await(read.event, "").ok());
      EXPECT_EQ(std::memcmp(there.data(), expected, bytes), 0) << "tensor " << i;
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
    EXPECT_EQ(controls_->early_run_count, 0);
    *controls_ = {};
  }

  void Open(int64_t memory_bytes_max = 0, int64_t stall_ns = AcceleratorOptions().stall_ns) {
    AcceleratorOptions options;
    options.stall_ns = stall_ns;
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

TEST_F(DeviceTablesTest, RowsThatDifferAreSentAlone) {
  auto before = Make({{"a", {3, 5}, 5}});
  auto after = Make({{"a", {5, 700}, 6}}, 2);
  ASSERT_TRUE(before->Upload().ok() && after->Upload().ok());
  EXPECT_EQ(before->uploaded_bytes(), kTableBytes + 4);
  EXPECT_EQ(after->uploaded_bytes(), kSmallStepBytes + 4);
  EXPECT_EQ(after->parameters().figures().kept_bytes, kTableBytes - kSmallStepBytes);
  EXPECT_EQ(after->parameters().figures().full_reason, "");
  EXPECT_EQ(charged(), 2 * (kTableBytes + 4));
  EXPECT_EQ(controls_->donated_count, 0) << "the version before still has its table";
  before->ExpectThere();
  after->ExpectThere();
  before.reset();
  auto rolled_back = Make({{"a", {3, 5}, 5}});
  ASSERT_TRUE(rolled_back->Upload().ok());
  EXPECT_EQ(rolled_back->uploaded_bytes(), kSmallStepBytes + 4);
  rolled_back->ExpectThere();
}

// A program's first run stops all runs of a GPU for milliseconds. So no delta makes it.
TEST_F(DeviceTablesTest, ABasesLoadMakesTheFirstRuns) {
  auto before = Make({{"a", {}, 0}, {"b", {}, 0}});
  auto after = Make({{"a", {5}, 6}, {"b", {}, 0}});
  const HostTensor tensor = before->tables().front().tensor();
  const ScatterPrograms programs = CompileScatters(*accelerator_, tensor);
  ASSERT_TRUE(before->parameters().Upload(0, ScattersOf(programs, tensor)).ok());
  EXPECT_EQ(controls_->scatter_count, static_cast<int64_t>(programs.size()));
  before->ExpectThere();
  EXPECT_EQ(controls_->used_bytes, 2 * kTableBytes + 4) << "the copies are gone";
  ASSERT_TRUE(after->parameters().Upload(0, ScattersOf(programs, tensor)).ok());
  EXPECT_EQ(controls_->scatter_count, static_cast<int64_t>(programs.size()) + 1);
  after->ExpectThere();
}

TEST_F(DeviceTablesTest, AFirstRunWithoutRoomOrThatFailsIsLeftOut) {
  auto failing = Make({{"a", {}, 0}});
  controls_->failing_scatter = 0;
  ASSERT_TRUE(failing->Upload().ok());
  EXPECT_GT(controls_->scatter_count, 1);
  failing->ExpectThere();
  failing.reset();
  Open(2 * kTableBytes);
  controls_->scatter_count = 0;
  auto large = Make({{"a", {}, 0}});
  ASSERT_TRUE(large->Upload().ok());
  EXPECT_EQ(controls_->scatter_count, 0);
  large->ExpectThere();
}

TEST_F(DeviceTablesTest, ADeviceThatIsGoneInAFirstRunFailsTheLoad) {
  Open(/*memory_bytes_max=*/0, /*stall_ns=*/50'000'000);
  auto before = Make({{"a", {}, 0}});
  controls_->run_ns = int64_t{1} << 60U;
  EXPECT_EQ(before->Upload().code(), base::Code::kUnavailable);
  EXPECT_EQ(before->parameters().Pin(), nullptr);
  controls_->run_ns = 0;
  before.reset();
  EXPECT_GT(charged(), kTableBytes) << "the device may still read the table";
  accelerator_.reset();
  *controls_ = {};  // what the device has is never freed
}

// The table is copied once, whatever the rows: each step writes over the result of the one before.
TEST_F(DeviceTablesTest, ManyRowsTakeSeveralStepsAndOneCopy) {
  controls_->transfer_in_ns = 100'000;
  auto before = Make({{"a", Rows(100), 5}});
  auto after = Make({{"a", Rows(850, 50), 6}});
  ASSERT_TRUE(before->Upload().ok() && after->Upload().ok());
  // Rows 0 to 899: one step of 512, and another one for the 388 others.
  EXPECT_EQ(controls_->donated_count, 1);
  EXPECT_EQ(after->uploaded_bytes(), 8 * kSmallStepBytes + 4);
  EXPECT_EQ(controls_->used_bytes, 2 * (kTableBytes + 4));
  before->ExpectThere();
  after->ExpectThere();
}

TEST_F(DeviceTablesTest, TheNearestTableIsTaken) {
  auto far = Make({{"a", Rows(500), 5}});
  auto near = Make({{"a", Rows(3), 6}});
  auto third = Make({{"a", Rows(3), 7}});
  ASSERT_TRUE(far->Upload().ok() && near->Upload().ok() && third->Upload().ok());
  EXPECT_EQ(third->uploaded_bytes(), kSmallStepBytes + 4);
  third->ExpectThere();
}

TEST_F(DeviceTablesTest, AFailedStepSendsTheWholeTable) {
  auto before = Make({{"a", {3}, 5}});
  ASSERT_TRUE(before->Upload().ok());
  for (const int64_t step : {0, 1}) {
    controls_->failing_scatter = step;
    auto after = Make({{"a", Rows(600), 6}});
    ASSERT_TRUE(after->Upload().ok());
    const UploadFigures figures = after->parameters().figures();
    EXPECT_NE(figures.full_reason.find("table: "), std::string::npos);
    EXPECT_NE(figures.full_reason.find("the fake scatter has failed"), std::string::npos);
    EXPECT_EQ(figures.full_count, 1);
    EXPECT_EQ(figures.uploaded_bytes, kTableBytes + 4);
    EXPECT_EQ(charged(), 2 * (kTableBytes + 4));
    before->ExpectThere();
    after->ExpectThere();
  }
}

TEST_F(DeviceTablesTest, ADeviceThatIsGoneFailsTheUpload) {
  Open(/*memory_bytes_max=*/0, /*stall_ns=*/50'000'000);
  auto before = Make({{"a", {3}, 5}});
  ASSERT_TRUE(before->Upload().ok());
  // Two steps, which are awaited together, and three, of which the last waits for the others.
  for (const int64_t row_count : {600, 700}) {
    auto after = Make({{"a", Rows(row_count), 6}});
    controls_->run_ns = int64_t{1} << 60U;
    EXPECT_EQ(after->Upload().code(), base::Code::kUnavailable);
    EXPECT_EQ(after->parameters().Pin(), nullptr);
    controls_->run_ns = 0;
  }
  before->ExpectThere();
  before.reset();
  EXPECT_GT(charged(), 2 * kTableBytes) << "the device may still write to both tables";
  accelerator_.reset();
  *controls_ = {};  // what the device has is never freed
}

// A table in each step would take memory that is charged to no one.
TEST_F(DeviceTablesTest, APluginThatCopiesEachTimeGetsTheTable) {
  controls_->donates = false;
  auto before = Make({{"a", {3}, 5}});
  auto after = Make({{"a", Rows(600), 6}});
  ASSERT_TRUE(before->Upload().ok() && after->Upload().ok());
  EXPECT_NE(after->parameters().figures().full_reason.find("in each step"), std::string::npos);
  EXPECT_EQ(controls_->used_bytes, 2 * (kTableBytes + 4));
  after->ExpectThere();
}

TEST_F(DeviceTablesTest, ATableOfAnotherBaseIsSentWhole) {
  auto before = Make({{"a", {3}, 5}});
  auto after = Make({{"b", {3}, 5}});
  ASSERT_TRUE(before->Upload().ok() && after->Upload().ok());
  EXPECT_NE(after->parameters().figures().full_reason.find("its base"), std::string::npos);
  after->ExpectThere();
}

TEST_F(DeviceTablesTest, TooManyRowsAreSentAsATable) {
  auto before = Make({{"a", Rows(1'500), 5}});
  auto after = Make({{"a", Rows(1'500, 1'500), 6}});
  ASSERT_TRUE(before->Upload().ok() && after->Upload().ok());
  EXPECT_NE(after->parameters().figures().full_reason.find("too many"), std::string::npos);
  EXPECT_EQ(after->uploaded_bytes(), kTableBytes + 4);
  after->ExpectThere();
}

// The idle version gives way: no table is made from one that must go.
TEST_F(DeviceTablesTest, WithoutRoomForBothTheTableIsSentWhole) {
  Open(2 * kTableBytes);
  auto before = Make({{"a", {3}, 5}});
  auto after = Make({{"a", {4}, 6}});
  ASSERT_TRUE(before->Upload().ok() && after->Upload().ok());
  EXPECT_FALSE(before->parameters().IsThere());
  EXPECT_NE(after->parameters().figures().full_reason.find("no room"), std::string::npos);
  EXPECT_EQ(charged(), kTableBytes + 4);
  after->ExpectThere();
}

// The blocks of a scatter are charged too, and a run may have the memory.
TEST_F(DeviceTablesTest, WithoutRoomForItsRowsTheTableIsSentWhole) {
  Open(2 * (kTableBytes + 4) + 100);
  auto before = Make({{"a", {3}, 5}});
  auto after = Make({{"a", {4}, 6}});
  ASSERT_TRUE(before->Upload().ok() && after->Upload().ok());
  EXPECT_NE(after->parameters().figures().full_reason.find("no memory left"), std::string::npos);
  EXPECT_EQ(charged(), 2 * (kTableBytes + 4));
  before->ExpectThere();
  after->ExpectThere();
}

TEST_F(DeviceTablesTest, ATableWaitsForTheMemoryOfTheLastRows) {
  Open(2 * (2 * kTableBytes + 4) + 2 * kSmallStepBytes);
  auto before = Make({{"a", {3}, 5}, {"b", {3}, 5}});
  auto after = Make({{"a", {4}, 6}, {"b", {4}, 6}});
  ASSERT_TRUE(before->Upload().ok() && after->Upload().ok());
  EXPECT_EQ(after->parameters().figures().full_reason, "");
  EXPECT_EQ(after->uploaded_bytes(), 2 * kSmallStepBytes + 4);
  before->ExpectThere();
  after->ExpectThere();
}

TEST_F(DeviceTablesTest, ADroppedCopyComesBackByItsRows) {
  Open(2 * (kTableBytes + 4) + 2 * kSmallStepBytes);
  auto first = Make({{"a", {3}, 5}});
  auto second = Make({{"a", {4}, 6}});
  auto third = Make({{"a", {5}, 7}});
  ASSERT_TRUE(first->Upload().ok() && second->Upload().ok() && third->Upload().ok());
  EXPECT_TRUE(first->parameters().IsThere()) << "the third table is made from its table";
  EXPECT_FALSE(second->parameters().IsThere());
  const int64_t before_bytes = second->uploaded_bytes();
  ASSERT_TRUE(second->Upload().ok());
  EXPECT_EQ(second->uploaded_bytes() - before_bytes, kSmallStepBytes + 4);
  second->ExpectThere();
}

TEST(RowScatterTest, SizesFitTheBlockAndTheIds) {
  HostTensor tensor{PJRT_Buffer_Type_F32, {1'000'000, 16}, nullptr, 64'000'000};
  EXPECT_EQ(RowScatter::SizesFor(tensor), (std::vector<int64_t>{128, 512, 2'048, 8'192}));
  tensor.dims = {1'000, 16'000};
  EXPECT_EQ(RowScatter::SizesFor(tensor), (std::vector<int64_t>{1, 4, 16, 64}));
  tensor.dims = {10, 1'600'000};
  EXPECT_EQ(RowScatter::SizesFor(tensor), std::vector<int64_t>{}) << "a row is larger than a block";
  tensor.dims = {int64_t{1} << 31U, 16};
  tensor.bytes = size_t{1} << 37U;
  EXPECT_EQ(RowScatter::SizesFor(tensor), std::vector<int64_t>{}) << "ids have 32 bits";
  tensor = {PJRT_Buffer_Type_BF16, {1'000'000, 16}, nullptr, 32'000'000};
  EXPECT_EQ(RowScatter::SizesFor(tensor), std::vector<int64_t>{});
}

#ifdef __SANITIZE_THREAD__
// It takes a quarter of a second for each, and has few races to find: one thread uploads at a time.
constexpr uint32_t kRandomDeltaCount = 8;
#else
constexpr uint32_t kRandomDeltaCount = 30;
#endif

// Random loads, ends, drops and failures of versions on a device that does all steps late: it
// always has a version's bytes, the charge is that of each buffer, once, and no more than the
// tables is sent.
class RandomDeltasTest : public DeviceTablesTest, public ::testing::WithParamInterface<bool> {
 protected:
  std::unique_ptr<TableVersion> MakeAny(float value) {
    std::vector<HostTable> tables;
    for (size_t i = 0, count = 1 + Draw(2); i < count; ++i) {
      std::set<int64_t> rows;
      const size_t range = Draw(2) == 0 ? kRowCount : 200;
      for (size_t row = Draw(3) == 0 ? Draw(1'000) : Draw(4); row > 0; --row) {
        rows.insert(static_cast<int64_t>(Draw(range)));
      }
      tables.emplace_back("base" + std::to_string(Draw(2)), std::vector(rows.begin(), rows.end()),
                          value);
    }
    return Make(std::move(tables), value);
  }

  void Upload(TableVersion* version) {
    const int64_t before_bytes = version->uploaded_bytes();
    if (Draw(4) == 0) {
      controls_->late_fails_one_of = 12;
      controls_->failing_scatter = static_cast<int64_t>(Draw(3));
      controls_->failing_copy = GetParam() ? -1 : static_cast<int64_t>(Draw(6));
    }
    static_cast<void>(version->Upload());
    controls_->late_fails_one_of = 0;
    controls_->failing_scatter = -1;
    controls_->failing_copy = -1;
    const auto table_count = static_cast<int64_t>(version->tables().size());
    EXPECT_LE(version->uploaded_bytes() - before_bytes, table_count * kTableBytes + 4);
  }

  void TakeStep(float value) {
    if (versions_.empty() || Draw(3) > 0) {
      versions_.push_back(MakeAny(value));
      return Upload(versions_.back().get());
    }
    const auto index = static_cast<std::ptrdiff_t>(Draw(versions_.size()));
    if (Draw(2) == 0) return Upload(versions_[index].get());
    versions_.erase(versions_.begin() + index);
  }

  void ExpectAllThere() {
    std::set<const void*> buffers;
    int64_t expected_bytes = 0;
    for (const auto& version : versions_) {
      if (!version->parameters().IsThere()) continue;
      expected_bytes += 4;
      for (const void* const buffer : version->ExpectThere()) {
        shared_count_ += buffers.insert(buffer).second ? 0 : 1;
      }
    }
    expected_bytes += static_cast<int64_t>(buffers.size()) * kTableBytes;
    EXPECT_EQ(charged(), expected_bytes);
    if (!GetParam()) EXPECT_EQ(controls_->used_bytes, expected_bytes);
  }

  size_t Draw(size_t end) { return random_() % end; }

  std::mt19937 random_;
  std::vector<std::unique_ptr<TableVersion>> versions_;
  int64_t shared_count_ = 0;
};

TEST_P(RandomDeltasTest, HaveTheirBytesThere) {
  int64_t donated_count = 0;
  for (uint32_t seed = 0; seed < kRandomDeltaCount && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    random_.seed(seed);
    accelerator_.reset();
    controls_->is_late = GetParam();
    controls_->late_seed = seed;
    Open(static_cast<int64_t>(2 + Draw(8)) * (kTableBytes + 4) +
         static_cast<int64_t>(Draw(2)) * 40'000);
    for (int step = 0; step < 30 && !HasFailure(); ++step) {
      TakeStep(static_cast<float>(step));
      ExpectAllThere();
    }
    versions_.clear();
    donated_count += controls_->donated_count;
    controls_->donated_count = 0;
  }
  EXPECT_GT(shared_count_, 2 * kRandomDeltaCount);
  EXPECT_GT(donated_count, 2 * kRandomDeltaCount);
}

INSTANTIATE_TEST_SUITE_P(DeviceTables, RandomDeltasTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Late" : "InTime"; });

}  // namespace
}  // namespace millpond::pjrt
