// Parameters get to an accelerator in chunks, from pinned memory and from any other.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "native/base/clock.h"
#include "native/memory/slab.h"
#include "native/memory/slab_pool.h"
#include "native/pjrt/accelerator.h"
#include "native/pjrt/chunked_upload.h"
#include "native/pjrt/device_parameters.h"
#include "native/pjrt/plugin.h"
#include "tests/native/crashed_process.h"
#include "tests/native/fake_pjrt_plugin.h"
#include "tests/native/units.h"

namespace millpond::pjrt {
namespace {

using base::Code;
using memory::Slab;
using testing::kMiB;

HostTensor TensorAt(const std::byte* elements, size_t bytes) {
  return {PJRT_Buffer_Type_F32, {static_cast<int64_t>(bytes / 4)}, elements, bytes};
}

// Writes a random word to each cache line.
void Fill(std::byte* start, size_t bytes, std::mt19937* random) {
  for (size_t i = 0; i < bytes; i += 64) {
    const auto word = static_cast<uint32_t>((*random)());
    std::memcpy(start + i, &word, sizeof(word));
  }
}

class UploadTest : public ::testing::Test {
 protected:
  UploadTest()
      : controls_(reinterpret_cast<FakePjrtControls* (*)()>(
            dlsym(dlopen(FAKE_PJRT_PLUGIN, RTLD_NOW), "FakePjrtControlsOf"))()) {
    *controls_ = {};
  }
  ~UploadTest() override {
    accelerator_.reset();
    EXPECT_EQ(controls_->live_buffers, 0);
    EXPECT_EQ(controls_->live_clients, 0);
    EXPECT_EQ(controls_->live_errors, 0);
    EXPECT_EQ(controls_->live_events, 0);
    EXPECT_EQ(controls_->live_managers, 0);
    EXPECT_EQ(controls_->live_pins, 0);
    EXPECT_EQ(controls_->overlapping_pins, 0);
    EXPECT_EQ(controls_->unpinned_in_copies, 0);
    *controls_ = {};
  }

  // Opens the accelerator with the controls that are set now.
  void Open(int64_t pinned_bytes_max = -1, int64_t stall_ns = kStallNs) {
    AcceleratorOptions options;
    options.stall_ns = stall_ns;
    options.idle_ns = 0;
    options.pinned_bytes_max = pinned_bytes_max;
    accelerator_ =
        Accelerator::MakeAll(Plugin::Open(FAKE_PJRT_PLUGIN).value(), options).value().front();
  }

  std::unique_ptr<DeviceParameters> Make(const std::vector<HostTensor>& tensors) const {
    return std::make_unique<DeviceParameters>(accelerator_, "model", tensors);
  }

  // Uploads `tensors`, and expects that the device has their bytes.
  std::unique_ptr<DeviceParameters> UploadAll(const std::vector<HostTensor>& tensors) const {
    auto parameters = Make(tensors);
    const base::Status uploaded = parameters->Upload(/*run_bytes=*/0);
    EXPECT_TRUE(uploaded.ok()) << uploaded.message();
    if (uploaded.ok()) ExpectThere(tensors, parameters.get());
    return parameters;
  }

  void ExpectThere(const std::vector<HostTensor>& tensors, DeviceParameters* parameters) const {
    const auto copy = parameters->Pin();
    ASSERT_NE(copy, nullptr);
    std::vector<char> there;
    for (size_t i = 0; i < tensors.size(); ++i) {
      there.resize(tensors[i].bytes);
      MILLPOND_PJRT_ARGS(PJRT_Buffer_ToHostBuffer, read);
      read.src = copy->buffer(i);
      read.dst = there.data();
      read.dst_size = there.size();
      ASSERT_EQ(accelerator_->api()->PJRT_Buffer_ToHostBuffer(&read), nullptr);
      ASSERT_TRUE(accelerator_->api().Await(read.event, "").ok());
      // One call, because a sanitizer looks at each step of a loop.
      const bool is_equal =
          there.empty() || std::memcmp(there.data(), tensors[i].elements, there.size()) == 0;
      EXPECT_TRUE(is_equal) << "tensor " << i;
    }
  }

  // Makes a slab of `bytes` with random contents, and pins the first `pinned_bytes` of it.
  std::unique_ptr<Slab> MakeSlab(size_t bytes, size_t pinned_bytes) {
    auto slab = std::move(Slab::Reserve(bytes).value());
    Fill(slab->start(), bytes, &random_);
    while (slab->PinNext(pinned_bytes, accelerator_->pinned())) {
    }
    return slab;
  }

  FakePjrtControls* const controls_;
  std::shared_ptr<Accelerator> accelerator_;
  std::mt19937 random_{7};  // NOLINT(cert-msc51-cpp): the same sequence in each run
};

TEST_F(UploadTest, PinnedMemoryIsCopiedAsItIs) {
  Open();
  const auto slab = MakeSlab(24 * kMiB, 24 * kMiB);
  EXPECT_EQ(controls_->pin_count, 3);
  const std::vector<HostTensor> tensors = {TensorAt(slab->start() + 64, 10 * kMiB),
                                           TensorAt(slab->start() + 11 * kMiB, 13 * kMiB),
                                           TensorAt(slab->start() + 8, 0)};
  const auto parameters = UploadAll(tensors);
  EXPECT_EQ(controls_->pin_count, 3) << "no staging buffer was made";
  EXPECT_EQ(controls_->copies_from_pinned, controls_->part_count) << "no part is in two pieces";
  EXPECT_EQ(parameters->figures().uploaded_bytes, 23 * kMiB);
  EXPECT_EQ(parameters->figures().unpinned_bytes, 0);
  EXPECT_LE(controls_->part_bytes_max, ChunkedUpload::Limits().chunk_bytes);
}

TEST_F(UploadTest, OtherMemoryIsStaged) {
  Open();
  const auto slab = MakeSlab(24 * kMiB, 8 * kMiB);
  for (int upload = 0; upload < 2; ++upload) {
    const auto parameters = UploadAll({TensorAt(slab->start() + 4, 23 * kMiB)});
    EXPECT_EQ(controls_->copies_from_pinned, controls_->part_count);
    EXPECT_EQ(parameters->figures().unpinned_bytes, 15 * kMiB + 4);
    EXPECT_LE(controls_->pin_count, 1 + static_cast<int64_t>(ChunkedUpload::kStagedCount))
        << "the buffers are kept";
  }
}

// The transfers of runs get between: they wait for three chunks at most, or for few small tensors.
TEST_F(UploadTest, FewChunksAreUnderWay) {
  controls_->transfer_in_ns = 1'000'000;
  Open();
  const size_t chunk_bytes = ChunkedUpload::Limits().chunk_bytes;
  const auto slab = MakeSlab(8 * chunk_bytes, 8 * chunk_bytes);
  std::vector<HostTensor> tensors;
  for (size_t i = 0; i < 4; ++i) {
    tensors.push_back(TensorAt(slab->start() + 2 * i * chunk_bytes, 2 * chunk_bytes));
  }
  UploadAll(tensors);
  EXPECT_EQ(controls_->part_count, 8);
  EXPECT_EQ(controls_->transfers_under_way_max, 3);
  EXPECT_EQ(controls_->parts_of_one_max, 1) << "XLA aborts if one of two fails";
  tensors.clear();
  for (int i = 0; i < 100; ++i) tensors.push_back(TensorAt(slab->start() + i * 64, 64));
  UploadAll(tensors);
  EXPECT_EQ(controls_->transfers_under_way_max, ChunkedUpload::kUnderWayCount);
}

TEST_F(UploadTest, ManySmallTensorsShareTheStagingBuffers) {
  Open();
  std::vector<std::byte> memory(100 * 64);
  Fill(memory.data(), memory.size(), &random_);
  std::vector<HostTensor> tensors;
  for (size_t i = 0; i < 100; ++i) tensors.push_back(TensorAt(memory.data() + i * 64, 64));
  UploadAll(tensors);
  EXPECT_EQ(controls_->copies_from_pinned, 100);
}

TEST_F(UploadTest, APluginThatPinsNothingGetsTheMemoryAsItIs) {
  controls_->pins = false;
  Open();
  const auto slab = MakeSlab(10 * kMiB, 10 * kMiB);
  EXPECT_EQ(slab->pinned_bytes(), 0);
  EXPECT_EQ(UploadAll({TensorAt(slab->start(), 10 * kMiB)})->figures().unpinned_bytes, 10 * kMiB);
  EXPECT_EQ(controls_->part_count, 3);
  EXPECT_EQ(accelerator_->State().pinned_bytes, 0);
}

TEST_F(UploadTest, WholeTensorsAreSentIfThePluginNeedsThem) {
  for (const bool has_parts : {false, true}) {
    controls_->transfers_parts = has_parts;
    controls_->is_column_major = has_parts;
    Open();
    const auto slab = MakeSlab(10 * kMiB, 0);
    const auto parameters = UploadAll({TensorAt(slab->start(), 10 * kMiB)});
    EXPECT_EQ(controls_->part_count, 0);
    EXPECT_EQ(parameters->figures().unpinned_bytes, 10 * kMiB);
    EXPECT_EQ(controls_->live_buffers, 1);
  }
}

// A transfer that is refused, and a copy that fails after it has begun, leave nothing behind.
TEST_F(UploadTest, AFailureAtAnyChunkLeavesNothing) {
  Open();
  const auto slab = MakeSlab(16 * kMiB, 8 * kMiB);
  const std::vector<HostTensor> tensors = {TensorAt(slab->start() + 64, 12 * kMiB),
                                           TensorAt(slab->start() + 13 * kMiB, 64)};
  UploadAll(tensors);
  const int64_t part_count = controls_->part_count;
  for (int64_t part = 0; part < part_count; ++part) {
    for (int64_t* const failing : {&controls_->failing_part, &controls_->failing_copy}) {
      *failing = part;
      auto parameters = Make(tensors);
      EXPECT_EQ(parameters->Upload(0).code(), Code::kInternal);
      EXPECT_EQ(controls_->live_buffers, 0);
      EXPECT_EQ(accelerator_->memory().ChargedBytes("model").first, 0);
      EXPECT_EQ(parameters->figures().uploaded_bytes, 0);
      *failing = -1;
      EXPECT_TRUE(parameters->Upload(0).ok());
      ExpectThere(tensors, parameters.get());
    }
  }
}

// Ends an accelerator on which something is under way for ever, which is never freed.
class GoneDeviceTest : public UploadTest {
 protected:
  ~GoneDeviceTest() override {
    accelerator_.reset();
    *controls_ = {};
  }

  void OpenAnew() {
    accelerator_.reset();
    *controls_ = {};
    Open(/*pinned_bytes_max=*/-1, /*stall_ns=*/50'000'000);
  }
  int64_t ChargedBytes() const { return accelerator_->memory().ChargedBytes("model").first; }
};

TEST_F(GoneDeviceTest, FailsTheUploadAndAllLaterOnes) {
  for (const size_t pinned_bytes : {24 * kMiB, size_t{0}}) {
    OpenAnew();
    auto slab = MakeSlab(24 * kMiB, pinned_bytes);
    const std::vector<HostTensor> tensors = {TensorAt(slab->start(), 10 * kMiB),
                                             TensorAt(slab->start() + 11 * kMiB, 13 * kMiB)};
    controls_->transfer_in_ns = int64_t{1} << 60U;
    auto parameters = Make(tensors);
    const base::Status uploaded = parameters->Upload(/*run_bytes=*/0);
    EXPECT_EQ(uploaded.code(), Code::kUnavailable) << uploaded.message();
    EXPECT_NE(uploaded.message().find("counts as lost"), std::string::npos) << uploaded.message();
    EXPECT_EQ(parameters->Pin(), nullptr);
    controls_->transfer_in_ns = 0;
    // The version's end waits for nothing, and the driver keeps what it may read.
    parameters.reset();
    const int64_t pins = controls_->live_pins;
    slab.reset();
    EXPECT_GT(controls_->live_pins, 0);
    EXPECT_LE(controls_->live_pins, pins);
    EXPECT_EQ(ChargedBytes(), 23 * kMiB) << "the device may still write there";
    // A later upload would wait as long, and keep as much.
    const int64_t part_count = controls_->part_count;
    const auto next = MakeSlab(8 * kMiB, 0);
    auto later = Make({TensorAt(next->start(), 8 * kMiB)});
    const base::Status refused = later->Upload(/*run_bytes=*/0);
    EXPECT_EQ(refused.code(), Code::kUnavailable);
    EXPECT_NE(refused.message().find("start the server anew"), std::string::npos);
    EXPECT_EQ(controls_->part_count, part_count);
    EXPECT_EQ(ChargedBytes(), 23 * kMiB);
  }
}

// An error ends the upload while another chunk is under way, which never ends.
TEST_F(GoneDeviceTest, KeepsWhatAFailedUploadLeavesUnderWay) {
  OpenAnew();
  auto slab = MakeSlab(24 * kMiB, 24 * kMiB);
  controls_->transfer_in_ns = int64_t{1} << 60U;
  controls_->failing_part = 1;
  auto parameters =
      Make({TensorAt(slab->start(), 10 * kMiB), TensorAt(slab->start() + 11 * kMiB, 13 * kMiB)});
  EXPECT_EQ(parameters->Upload(/*run_bytes=*/0).code(), Code::kInternal);
  EXPECT_TRUE(accelerator_->is_lost());
  EXPECT_EQ(ChargedBytes(), 23 * kMiB) << "the device may still write there";
  EXPECT_EQ(controls_->live_buffers, 2);
  controls_->transfer_in_ns = 0;
  parameters.reset();
  slab.reset();
  EXPECT_GT(controls_->live_pins, 0);
}

// The tensor with the most bytes left has one of the places until the end. So the link rests only
// if one tensor is larger than all others together.
TEST_F(UploadTest, TensorsShareTheLinkToTheEnd) {
  controls_->transfer_in_ns = 1'000'000;
  Open();
  const size_t chunk_bytes = ChunkedUpload::Limits().chunk_bytes;
  const auto slab = MakeSlab(7 * chunk_bytes, 7 * chunk_bytes);
  std::vector<HostTensor> tensors;
  for (const auto& [first, count] : {std::pair{0, 1}, {1, 1}, {2, 2}, {4, 3}}) {
    tensors.push_back(TensorAt(slab->start() + first * chunk_bytes, count * chunk_bytes));
  }
  UploadAll(tensors);
  EXPECT_EQ(controls_->part_count, 7);
  EXPECT_EQ(controls_->parts_alone_count, 1) << "the first one";
}

TEST_F(UploadTest, TheSmallestTensorsComeFirst) {
  Open();
  const auto slab = MakeSlab(24 * kMiB, 24 * kMiB);
  controls_->failing_part = 1;
  auto parameters =
      Make({TensorAt(slab->start(), 20 * kMiB), TensorAt(slab->start() + 20 * kMiB, 64)});
  EXPECT_EQ(parameters->Upload(0).code(), Code::kInternal);
  EXPECT_EQ(controls_->part_bytes_max, 64) << "of the part before the one that failed";
}

TEST_F(UploadTest, ADeviceWithoutRoomLeavesNothing) {
  Open();
  const auto slab = MakeSlab(8 * kMiB, 8 * kMiB);
  controls_->memory_bytes_max = 6 * kMiB;
  auto parameters =
      Make({TensorAt(slab->start(), 4 * kMiB), TensorAt(slab->start() + 4 * kMiB, 4 * kMiB)});
  EXPECT_EQ(parameters->Upload(0).code(), Code::kResourceExhausted);
  EXPECT_EQ(controls_->part_count, 0);
}

// A GPU's driver stops all runs while a client takes memory from it, so a swap takes none.
TEST_F(UploadTest, ASwapTakesNoMemoryFromTheDriver) {
  Open();
  const auto slab = MakeSlab(8 * kMiB, 8 * kMiB);
  const std::vector<HostTensor> tensors = {TensorAt(slab->start(), 4 * kMiB),
                                           TensorAt(slab->start() + 4 * kMiB, 3 * kMiB)};
  auto before = UploadAll(tensors);
  const int64_t taken = controls_->most_used_bytes;
  EXPECT_LE(taken, 14 * kMiB);
  for (int swap = 0; swap < 3; ++swap) {
    before = UploadAll(tensors);
    EXPECT_EQ(controls_->most_used_bytes, taken);
  }
  before.reset();
  EXPECT_EQ(controls_->used_bytes, 0);
}

// The next version has no right to what the runs of others were promised.
TEST_F(UploadTest, NothingIsReservedOfTheMemoryForRuns) {
  Open();
  accelerator_->memory().SetLimit(16 * kMiB);
  const auto slab = MakeSlab(8 * kMiB, 8 * kMiB);
  DeviceParameters other(accelerator_, "other", {TensorAt(slab->start(), 2 * kMiB)});
  ASSERT_TRUE(other.Upload(/*run_bytes=*/8 * kMiB).ok());
  const int64_t taken = controls_->most_used_bytes;
  const auto parameters = UploadAll({TensorAt(slab->start() + 4 * kMiB, 4 * kMiB)});
  EXPECT_EQ(controls_->most_used_bytes, std::max<int64_t>(taken, 6 * kMiB));
}

// Memory that the next version may need is not worth an error, nor a byte of what others have.
TEST_F(UploadTest, NothingIsReservedOnAFullDevice) {
  Open();
  const auto slab = MakeSlab(4 * kMiB, 4 * kMiB);
  controls_->memory_bytes_max = 6 * kMiB;
  const auto parameters = UploadAll({TensorAt(slab->start(), 4 * kMiB)});
  EXPECT_EQ(controls_->refused_count, 0);
  EXPECT_EQ(controls_->most_used_bytes, 4 * kMiB);
}

TEST_F(UploadTest, NoMoreThanTheLimitIsPinned) {
  Open(/*pinned_bytes_max=*/16 * kMiB);
  auto slab = MakeSlab(32 * kMiB, 32 * kMiB);
  EXPECT_EQ(slab->pinned_bytes(), 10 * kMiB);
  EXPECT_EQ(accelerator_->State().pinned_bytes, 10 * kMiB);
  EXPECT_EQ(accelerator_->State().pinned_limit_bytes, 16 * kMiB);
  slab.reset();
  EXPECT_EQ(accelerator_->State().pinned_bytes, 0);
}

// A slab that is unmapped too early waits for the copy from it. The accelerator reads memory as it
// was when the copy began.
TEST_F(UploadTest, APieceStaysPinnedWhileItIsCopied) {
  controls_->transfer_in_ns = 2'000'000;
  Open();
  auto slab = MakeSlab(4 * kMiB, 4 * kMiB);
  auto lease = std::make_unique<PinnedMemory::Lease>(accelerator_->pinned()->Take(slab->start()));
  EXPECT_EQ(lease->end(), slab->start() + 4 * kMiB);
  std::atomic<bool> is_unpinned{false};
  std::thread unpinning([&] {
    slab->ReturnPages(0, SIZE_MAX);
    is_unpinned = true;
  });
  // The piece is lent no more once the unpinning waits.
  while (accelerator_->pinned()->Take(slab->start()).end() != nullptr) std::this_thread::yield();
  EXPECT_FALSE(is_unpinned);
  EXPECT_EQ(controls_->live_pins, 1);
  lease.reset();
  unpinning.join();
  EXPECT_EQ(controls_->live_pins, 0);
}

// A driver may hold memory that it does not unpin: the server counts it, and pins no more.
TEST_F(UploadTest, MemoryThatIsNotUnpinnedStaysCounted) {
  alignas(4096) static std::byte memory[2][4096];  // nothing else will have its place
  Open();
  const std::shared_ptr<PinnedMemory> pinned = accelerator_->pinned();
  ASSERT_TRUE(pinned->Pin(memory[0], sizeof(memory[0]), nullptr));
  controls_->unpins = false;
  EXPECT_FALSE(pinned->Unpin(memory[0], sizeof(memory[0]), nullptr));
  EXPECT_EQ(pinned->Take(memory[0]).end(), nullptr);
  EXPECT_EQ(accelerator_->State().pinned_bytes, sizeof(memory[0]));
  EXPECT_FALSE(pinned->Pin(memory[1], sizeof(memory[1]), nullptr));
  EXPECT_EQ(controls_->pin_count, 1);
  controls_->live_pins -= 1;
}

// Loads go on. The driver may take any mapping in the place of the piece for pinned memory, and
// copy from the old pages, so the piece stays.
TEST_F(UploadTest, AnUnpinThatHangsHoldsUpNothing) {
  Open(/*pinned_bytes_max=*/-1, /*stall_ns=*/20'000'000);
  auto slab = MakeSlab(8 * kMiB, 8 * kMiB);
  auto other = MakeSlab(4 * kMiB, 4 * kMiB);
  const std::byte* const start = slab->start();
  const std::byte first = *start;
  std::promise<void> end;
  std::atomic<int> unpin_count{0};
  controls_->before_unpin = [&, ended = end.get_future().share()] {
    ++unpin_count;
    ended.wait();
  };
  slab.reset();
  EXPECT_EQ(*start, first) << "it is mapped";
  const std::byte* const other_start = other->start();
  other.reset();
  EXPECT_EQ(*other_start, *other_start);
  EXPECT_LE(unpin_count, 1) << "another one would hang as well";
  EXPECT_EQ(accelerator_->State().pinned_bytes, 12 * kMiB);
  const auto next = MakeSlab(8 * kMiB, 0);
  EXPECT_FALSE(next->PinNext(8 * kMiB, accelerator_->pinned()));
  UploadAll({TensorAt(next->start(), 7 * kMiB)});
  end.set_value();
  while (accelerator_->State().pinned_bytes > 0) std::this_thread::yield();
  while (!next->PinNext(8 * kMiB, accelerator_->pinned())) std::this_thread::yield();
  EXPECT_EQ(controls_->live_pins, 1);
}

TEST_F(UploadTest, AStagingBlockIsFreedOnceItIsUnpinned) {
  Open(/*pinned_bytes_max=*/-1, /*stall_ns=*/20'000'000);
  const int64_t bytes = accelerator_->staging_bytes();
  std::unique_ptr<StagingPool> pool;
  // On a busy machine a pin may be overdue before it begins.
  do pool = accelerator_->MakeStaging(4096);
  while (!pool->Take().is_pinned());
  std::promise<void> end;
  controls_->before_unpin = [ended = end.get_future().share()] { ended.wait(); };
  pool.reset();
  EXPECT_GT(accelerator_->staging_bytes(), bytes);
  end.set_value();
  while (accelerator_->staging_bytes() > bytes) std::this_thread::yield();
}

TEST_F(UploadTest, AStagingBlockThatIsNotUnpinnedIsKept) {
  Open();
  auto pool = accelerator_->MakeStaging(4096);
  char* const data = pool->Take().data();
  std::memset(data, 7, 4096);
  const int64_t bytes = accelerator_->staging_bytes();
  ASSERT_GT(bytes, 0);
  controls_->unpins = false;
  pool.reset();
  EXPECT_EQ(accelerator_->staging_bytes(), bytes);
  EXPECT_EQ(std::count(data, data + 4096, 7), 4096) << "a sanitizer sees if it was freed";
  controls_->unpins = true;
  controls_->live_pins -= 1;
}

class Crash : public UploadTest {
 protected:
  // Returns the version that is to blame for a crash in `use` of an accelerator by the load of
  // version 8 of "ctr".
  std::string BlamedFor(const std::function<void()>& use) {
    const int signal = process_.SignalOf([&] {
      const base::CrashRow other("other", 1);
      const base::CrashRow row("ctr", 8);
      const auto loading = base::CrashScope::Loading(row);
      Open();
      use();
    });
    EXPECT_EQ(signal, SIGABRT);
    return process_.Crashed();
  }

  base::CrashedProcess process_;
};

// The plugin is called on threads that serve all versions.
TEST_F(Crash, InAnUploadBlamesTheVersionThatIsUploaded) {
  std::vector<std::byte> memory(64);
  const auto upload = [&] {
    controls_->crashing_part = 0;
    static_cast<void>(Make({TensorAt(memory.data(), 64)})->Upload(0));
  };
  EXPECT_EQ(BlamedFor(upload), "ctr/8+");
}

TEST_F(Crash, InAnUploadForARunBlamesItsVersion) {
  std::vector<std::byte> memory(64);
  const auto upload = [&] {
    controls_->crashing_part = 0;
    const std::vector<HostTensor> tensors = {TensorAt(memory.data(), 64)};
    DeviceParameters parameters(accelerator_, "ctr", tensors, /*is_low=*/false, /*version=*/7);
    parameters.Pin();  // asks for the copy, which is not there
    pause();
  };
  EXPECT_EQ(BlamedFor(upload), "ctr/7");
}

TEST_F(Crash, InAPinBlamesTheVersionWhoseMemoryIsPinned) {
  EXPECT_EQ(BlamedFor([&] {
              controls_->crashes_in_pins = true;
              MakeSlab(4 * kMiB, 4 * kMiB);
            }),
            "ctr/8+");
}

// Versions over the slabs of a pool whose memory is pinned: a device has the bytes of a version
// after each upload and until its end, whatever was pinned, moved, returned or failed before.
class Versions {
 public:
  struct Version {
    std::unique_ptr<Slab> slab;
    std::vector<HostTensor> tensors;
    std::unique_ptr<DeviceParameters> parameters;
  };
  // Expects that the device has the bytes of a version.
  using Check = std::function<void(const Version&)>;

  Versions(std::shared_ptr<Accelerator> accelerator, FakePjrtControls* controls, uint32_t seed,
           Check check)
      : accelerator_(std::move(accelerator)),
        controls_(controls),
        check_(std::move(check)),
        random_(seed) {
    pool_.PinWith(accelerator_->pinned());
  }

  size_t Random(size_t end) { return random_() % end; }
  Version* Any() { return versions_.empty() ? nullptr : &versions_[Random(versions_.size())]; }

  void Load() {
    const std::string owner = std::to_string(Random(2));
    const size_t bytes = (1 + Random(6)) * 2 * kMiB;
    Version version;
    version.slab = std::move(pool_.Take(owner, bytes + 4 * kMiB, bytes).value());
    Fill(version.slab->start(), bytes, &random_);
    if (Random(2) == 0) {
      while (version.slab->PinNext(bytes, accelerator_->pinned())) {
      }
    }
    // Few sizes, because the fake device keeps the memory of each.
    const std::vector<size_t> sizes = {64, 4'160, kMiB, 3 * kMiB + 64, 5 * kMiB};
    for (size_t offset = 64 * Random(9); offset < bytes;) {
      const size_t size = sizes[Random(sizes.size())];
      if (size > bytes - offset) break;
      version.tensors.push_back(TensorAt(version.slab->start() + offset, size));
      offset += size + 64 * Random(3);
    }
    if (Random(4) == 0) EXPECT_TRUE(version.slab->Seal().ok());
    version.parameters = std::make_unique<DeviceParameters>(accelerator_, owner, version.tensors);
    pool_.Expect(owner, {bytes + 4 * kMiB, bytes, bytes, Random(2) * bytes});
    pool_.Refill(SIZE_MAX);
    versions_.push_back(std::move(version));
    Upload(&versions_.back());
  }

  // Uploads a version once more; in some cases the link fails on the way.
  void Upload(Version* version) {
    if (version->parameters->IsThere()) check_(*version);
    if (Random(4) == 0) controls_->failing_copy = static_cast<int64_t>(Random(4));
    if (!version->parameters->Upload(0).ok()) {
      EXPECT_LT(controls_->failing_copy, 0);
    }
    controls_->failing_copy = -1;
    if (version->parameters->IsThere()) check_(*version);
  }

  void End(size_t index) {
    if (versions_[index].parameters->IsThere()) check_(versions_[index]);
    pool_.GiveBack([&] {
      Version version = std::move(versions_[index]);
      version.parameters.reset();
      return std::move(version.slab);
    }());
    versions_.erase(versions_.begin() + static_cast<std::ptrdiff_t>(index));
    pool_.Refill(SIZE_MAX);
  }

  void TakeAction() {
    switch (Random(8)) {
      case 0:
      case 1:
        if (versions_.size() < 4) Load();
        break;
      case 2:
        if (Version* const version = Any()) Upload(version);
        break;
      case 3:
        if (!versions_.empty()) End(Random(versions_.size()));
        break;
      case 4:
        if (Random(4) == 0) pool_.Forget(std::to_string(Random(2)));
        break;
      case 5:
        controls_->pins = Random(4) > 0;
        break;
      default:
        for (size_t step = Random(40); step > 0 && pool_.KeepStep(); --step) {
        }
    }
  }

  void EndAll() {
    while (!versions_.empty()) End(0);
    pool_.Forget("0");
    pool_.Forget("1");
    while (pool_.KeepStep()) {
    }
  }

 private:
  const std::shared_ptr<Accelerator> accelerator_;
  FakePjrtControls* const controls_;
  const Check check_;
  std::mt19937 random_;
  memory::SlabPool pool_{memory::SlabPoolOptions()};
  std::vector<Version> versions_;
};

#ifdef __SANITIZE_THREAD__
// It takes two seconds for each, and has few races to find: one thread uploads at a time.
constexpr uint32_t kRandomUploadCount = 2;
#else
constexpr uint32_t kRandomUploadCount = 6;
#endif

TEST_F(UploadTest, RandomVersionsHaveTheirBytesThere) {
  for (uint32_t seed = 0; seed < kRandomUploadCount; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    *controls_ = {};
    Open(seed == 0 ? static_cast<int64_t>(12 * kMiB) : -1);
    Versions versions(accelerator_, controls_, seed, [this](const Versions::Version& version) {
      ExpectThere(version.tensors, version.parameters.get());
    });
    for (int action = 0; action < 60 && !HasFailure(); ++action) {
      versions.TakeAction();
      EXPECT_EQ(controls_->overlapping_pins, 0);
    }
    versions.EndAll();
    EXPECT_EQ(accelerator_->State().pinned_bytes, 0);
    accelerator_.reset();
  }
}

}  // namespace
}  // namespace millpond::pjrt
