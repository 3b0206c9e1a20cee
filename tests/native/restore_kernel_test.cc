#include "native/tf/restore_kernel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "native/base/clock.h"
#include "native/tf/checkpoint_index.h"
#include "native/tf/core_share.h"
#include "native/tf/load_control.h"
#include "native/tf/memory_allocator.h"
#include "native/tf/shard_reader.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/node_def_builder.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/kernels/save_restore_tensor.h"
#include "tensorflow/core/protobuf/config.pb.h"
#include "tensorflow/core/public/session.h"
#include "tensorflow/core/public/version.h"
#include "tests/native/checkpoint_files.h"
#include "tests/native/fake_memory.h"
#include "tests/native/saved_model_files.h"
#include "tests/native/tensors.h"
#include "xla/tsl/lib/hash/crc32c.h"

// This executable leaves out tensorflow_runtime.h: it registers the kernel itself and runs it on
// its own device, with memory that counts and can end.
namespace millpond::tf {
namespace {

using tensorflow::BundleEntryProto;
using tensorflow::DataType;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::TensorSlice;
using tensorflow::tstring;
using testing::IndexFile;
using testing::IsSame;
using testing::NamedTensors;
using testing::ReadFile;
using testing::TemporaryDirectory;
using testing::Vector;
using testing::WriteFile;

constexpr int64_t kMemoryBytes = 256 << 20;
constexpr int64_t kBigCount = 700'001;  // of float: more than ten pieces, and an odd end

class KernelEnvironment : public ::testing::Environment {
  void SetUp() override { RegisterRestoreKernel(); }
};
::testing::Environment* const kernel_environment =
    ::testing::AddGlobalTestEnvironment(new KernelEnvironment);

// Memory that counts and can end. It outlives the tensors in it.
struct FakeAllocator {
  explicit FakeAllocator(int64_t limit_bytes) : memory(limit_bytes) {}
  memory::FakeMemory memory;
  MemoryAllocator allocator{"fake", &memory};
};

class FakeDevice : public tensorflow::DeviceBase {
 public:
  explicit FakeDevice(tsl::Allocator* allocator)
      : DeviceBase(tensorflow::Env::Default()), allocator_(allocator) {}
  tsl::Allocator* GetAllocator(tsl::AllocatorAttributes) override { return allocator_; }
  const std::string& name() const override { return name_; }

 private:
  const std::string name_ = "fake";
  tsl::Allocator* const allocator_;
};

Tensor Strings(const std::vector<std::string>& values) {
  Tensor tensor(tensorflow::DT_STRING, {static_cast<int64_t>(values.size())});
  for (size_t i = 0; i < values.size(); ++i) tensor.flat<tstring>()(i) = values[i];
  return tensor;
}

tensorflow::NodeDef RestoreNode(const std::vector<DataType>& dtypes) {
  tensorflow::NodeDef node;
  EXPECT_TRUE(tensorflow::NodeDefBuilder("restore", "RestoreV2")
                  .Input("prefix", 0, tensorflow::DT_STRING)
                  .Input("names", 0, tensorflow::DT_STRING)
                  .Input("slices", 0, tensorflow::DT_STRING)
                  .Attr("dtypes", dtypes)
                  .Finalize(&node)
                  .ok());
  return node;
}

struct Wish {
  std::string name;
  DataType dtype = tensorflow::DT_FLOAT;
  std::string shape_and_slice;
};

struct Restored {
  absl::Status status;
  std::vector<Tensor> outputs;
};

// Runs RestoreV2 on a FakeDevice.
class RestoreOp {
 public:
  RestoreOp(const std::string& prefix, const std::vector<Wish>& wishes, FakeAllocator* memory)
      : device_(&memory->allocator) {
    std::vector<std::string> names;
    std::vector<std::string> slices;
    for (const Wish& wish : wishes) {
      names.push_back(wish.name);
      slices.push_back(wish.shape_and_slice);
      dtypes_.push_back(wish.dtype);
    }
    inputs_ = {Strings({prefix}), Strings(names), Strings(slices)};
  }

  std::vector<Tensor>& inputs() { return inputs_; }

  Restored Run() {
    return Compute(
        [](tensorflow::OpKernel* kernel, OpKernelContext* context) { kernel->Compute(context); });
  }
  // Runs TensorFlow's own kernel.
  Restored RunStock() {
    return Compute([this](tensorflow::OpKernel*, OpKernelContext* context) {
      context->SetStatus(
          tensorflow::RestoreTensorsV2(context, inputs_[0], inputs_[1], inputs_[2], dtypes_));
    });
  }

 private:
  template <typename Body>
  Restored Compute(const Body& body) {
    absl::Status created;
    const std::unique_ptr<tensorflow::OpKernel> kernel = tensorflow::CreateOpKernel(
        tensorflow::DeviceType(tensorflow::DEVICE_CPU), &device_, device_.GetAllocator({}),
        RestoreNode(dtypes_), TF_GRAPH_DEF_VERSION, &created);
    if (!created.ok()) return {created, {}};
    std::vector<tensorflow::TensorValue> values;
    for (Tensor& input : inputs_) values.emplace_back(&input);
    const std::vector<tsl::AllocatorAttributes> attributes(dtypes_.size());
    OpKernelContext::Params params;
    params.device = &device_;
    params.op_kernel = kernel.get();
    params.inputs = values;
    params.output_attr_array = attributes.data();
    OpKernelContext context(&params, static_cast<int>(dtypes_.size()));
    body(kernel.get(), &context);
    Restored restored{context.status(), {}};
    for (int output = 0; output < context.num_outputs(); ++output) {
      const std::unique_ptr<Tensor> tensor(context.release_output(output).tensor);
      if (tensor != nullptr) restored.outputs.push_back(*tensor);
    }
    return restored;
  }

  FakeDevice device_;
  std::vector<DataType> dtypes_;
  std::vector<Tensor> inputs_;
};

Tensor Random(DataType dtype, const TensorShape& shape) {
  static std::mt19937 random(7);
  Tensor tensor(dtype, shape);
  auto* const bytes = static_cast<uint8_t*>(tensor.data());
  const uint8_t mask = dtype == tensorflow::DT_BOOL ? 1 : 0xFF;
  for (size_t i = 0; i < tensor.TotalBytes(); ++i) bytes[i] = random() & mask;
  return tensor;
}

class RestoreKernelTest : public ::testing::Test {
 protected:
  RestoreOp Op(const std::vector<Wish>& wishes) { return {prefix_, wishes, &memory_}; }
  Restored Restore(const std::vector<Wish>& wishes) { return Op(wishes).Run(); }

  // Asserts that our kernel and the stock kernel restore the same; returns the result.
  std::vector<Tensor> ExpectAsStock(const std::vector<Wish>& wishes) {
    Restored ours = Restore(wishes);
    const Restored stock = Op(wishes).RunStock();
    EXPECT_TRUE(ours.status.ok()) << ours.status;
    EXPECT_TRUE(stock.status.ok()) << stock.status;
    EXPECT_EQ(ours.outputs.size(), wishes.size());
    for (size_t i = 0; i < std::min(ours.outputs.size(), stock.outputs.size()); ++i) {
      EXPECT_TRUE(IsSame(ours.outputs[i], stock.outputs[i])) << wishes[i].name;
    }
    return std::move(ours.outputs);
  }
  void ExpectRefused(const std::vector<Wish>& wishes, absl::StatusCode code,
                     const std::vector<std::string>& in_message) {
    const absl::Status status = Restore(wishes).status;
    EXPECT_EQ(status.code(), code) << status;
    for (const std::string& part : in_message) {
      EXPECT_NE(status.message().find(part), std::string::npos) << status << " lacks " << part;
    }
  }

  void WriteBig() {
    big_ = Random(tensorflow::DT_FLOAT, {kBigCount});
    testing::WriteCheckpoint(prefix_, {{"big", big_}, {"small", Vector<float>({1, 2, 3})}});
  }
  int64_t BigBytes() const { return kBigCount * int64_t{sizeof(float)}; }

  const TemporaryDirectory directory_;
  const std::string prefix_ = directory_.File("variables");
  const std::string shard_ = prefix_ + ".data-00000-of-00001";
  FakeAllocator memory_{kMemoryBytes};
  Tensor big_;
};

TEST_F(RestoreKernelTest, TensorFlowPicksOurs) {
  const tensorflow::KernelDef* definition = nullptr;
  std::string name;
  ASSERT_TRUE(tensorflow::FindKernelDef(tensorflow::DeviceType(tensorflow::DEVICE_CPU),
                                        RestoreNode({tensorflow::DT_FLOAT}), &definition, &name)
                  .ok());
  EXPECT_EQ(name, kRestoreKernelName);
}

// --- As the stock kernel restores them ---

class RestoreOfDtype : public RestoreKernelTest, public ::testing::WithParamInterface<DataType> {};

TEST_P(RestoreOfDtype, EveryShapeIsRestoredBitByBit) {
  NamedTensors tensors;
  std::vector<Wish> wishes;
  for (const TensorShape& shape :
       {TensorShape(), TensorShape({0}), TensorShape({1}), TensorShape({7}), TensorShape({3, 5}),
        TensorShape({2, 0, 4}), TensorShape({1, 1, 1, 9}), TensorShape({300'007})}) {
    const std::string name = "tensor" + shape.DebugString();
    tensors.emplace_back(name, Random(GetParam(), shape));
    wishes.push_back({name, GetParam(), ""});
  }
  testing::WriteCheckpoint(prefix_, tensors);
  const std::vector<Tensor> restored = ExpectAsStock(wishes);
  for (size_t i = 0; i < restored.size(); ++i) {
    EXPECT_TRUE(IsSame(restored[i], tensors[i].second)) << tensors[i].first;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Dtypes, RestoreOfDtype,
    ::testing::Values(tensorflow::DT_FLOAT, tensorflow::DT_DOUBLE, tensorflow::DT_HALF,
                      tensorflow::DT_BFLOAT16, tensorflow::DT_FLOAT8_E5M2,
                      tensorflow::DT_FLOAT8_E4M3FN, tensorflow::DT_INT4, tensorflow::DT_UINT4,
                      tensorflow::DT_INT8, tensorflow::DT_INT16, tensorflow::DT_INT32,
                      tensorflow::DT_INT64, tensorflow::DT_UINT8, tensorflow::DT_UINT16,
                      tensorflow::DT_UINT32, tensorflow::DT_UINT64, tensorflow::DT_BOOL,
                      tensorflow::DT_COMPLEX64, tensorflow::DT_COMPLEX128, tensorflow::DT_QINT8,
                      tensorflow::DT_QUINT8, tensorflow::DT_QINT16, tensorflow::DT_QUINT16,
                      tensorflow::DT_QINT32),
    [](const auto& info) { return tensorflow::DataTypeString(info.param); });

TEST_F(RestoreKernelTest, StringsAndVariantsAreRestored) {
  std::vector<std::string> words = {"", "mill", std::string(300, 'x'), std::string("\0\xFF", 2)};
  for (int i = 0; i < 10'000; ++i) words.push_back("word " + std::to_string(i));
  Tensor variants(tensorflow::DT_VARIANT, {2});
  variants.flat<tensorflow::Variant>()(0) = Vector<float>({1, 2});
  variants.flat<tensorflow::Variant>()(1) = Strings({"pond"});
  testing::WriteCheckpoint(prefix_, {{"words", Strings(words)},
                                     {"no words", Strings({})},
                                     {"variants", variants},
                                     {"floats", Vector<float>({3})}});
  const std::vector<Tensor> restored = ExpectAsStock({{"variants", tensorflow::DT_VARIANT, ""},
                                                      {"words", tensorflow::DT_STRING, ""},
                                                      {"floats", tensorflow::DT_FLOAT, ""},
                                                      {"no words", tensorflow::DT_STRING, ""}});
  EXPECT_TRUE(IsSame(restored[1], Strings(words)));
}

TEST_F(RestoreKernelTest, PartitionedTensorIsRestoredInAnyParts) {
  const Tensor whole = Random(tensorflow::DT_FLOAT, {1'000, 90});
  {
    tensorflow::BundleWriter writer(tensorflow::Env::Default(), prefix_);
    int64_t row = 0;
    for (const char* slice : {"0,400:-", "400,350:-", "750,250:-"}) {
      const TensorSlice part = TensorSlice::ParseOrDie(slice);
      Tensor value = tensorflow::Tensor(whole.dtype(), {part.length(0), 90});
      value.flat<float>() = whole.Slice(row, row + part.length(0)).unaligned_flat<float>();
      ASSERT_TRUE(writer.AddSlice("p", whole.shape(), part, value).ok());
      row += part.length(0);
    }
    ASSERT_TRUE(writer.Finish().ok());
  }
  const auto p = [](const std::string& slice) { return Wish{"p", tensorflow::DT_FLOAT, slice}; };
  const std::vector<Tensor> restored =
      ExpectAsStock({p("1000 90 750,250:-"), p(""), p("1000 90 0,400:-"), p("1000 90 400,350:-"),
                     p("1000 90 300,500:-"), p("1000 90 10,5:7,3"), p("1000 90 -:-")});
  EXPECT_TRUE(IsSame(restored[1], whole));
}

TEST_F(RestoreKernelTest, PartsOfAWholeTensorAreRestored) {
  const Tensor whole = Random(tensorflow::DT_FLOAT, {50, 30});
  testing::WriteCheckpoint(prefix_, {{"w", whole}});
  const auto w = [](const std::string& slice) { return Wish{"w", tensorflow::DT_FLOAT, slice}; };
  const std::vector<Tensor> restored = ExpectAsStock(
      {w("50 30 -:-"), w("50 30 5,20:-"), w("50 30 49,1:29,1"), w("50 30 0,50:0,30")});
  EXPECT_TRUE(IsSame(restored[0], whole));
}

TEST_F(RestoreKernelTest, TensorsOfSeveralShardsAreRestored) {
  std::vector<tstring> parts;
  std::vector<Wish> wishes;
  for (int shard = 0; shard < 3; ++shard) {
    const std::string part = directory_.File("part" + std::to_string(shard));
    NamedTensors tensors;
    for (int i = 0; i < 3; ++i) {
      const std::string name = "t" + std::to_string(10 * i + shard);
      tensors.emplace_back(name, Random(tensorflow::DT_FLOAT, {100'000 + i + shard}));
      wishes.push_back({name, tensorflow::DT_FLOAT, ""});
    }
    testing::WriteCheckpoint(part, tensors);
    parts.emplace_back(part);
  }
  ASSERT_TRUE(tensorflow::MergeBundles(tensorflow::Env::Default(), parts, prefix_).ok());
  std::shuffle(wishes.begin(), wishes.end(), std::mt19937(3));
  ExpectAsStock(wishes);
}

TEST_F(RestoreKernelTest, OneNameTwiceIsRestoredTwice) {
  WriteBig();
  const Wish big{"big", tensorflow::DT_FLOAT, ""};
  const Restored restored = Restore({big, {"small", tensorflow::DT_FLOAT, ""}, big});
  ASSERT_TRUE(restored.status.ok()) << restored.status;
  EXPECT_TRUE(IsSame(restored.outputs[0], big_));
  EXPECT_TRUE(IsSame(restored.outputs[2], big_));
}

TEST_F(RestoreKernelTest, ACheckpointOfTheOtherByteOrderIsRestored) {
  testing::WriteCheckpoint(prefix_, {{"w", Vector<float>({1, -2.5, 3e9})}});
  std::string bytes = ReadFile(shard_);
  for (size_t i = 0; i < bytes.size(); i += 4) std::reverse(&bytes[i], &bytes[i] + 4);
  WriteFile(shard_, bytes);
  IndexFile index(prefix_);
  index.Edit<tensorflow::BundleHeaderProto>(
      "", [](auto* header) { header->set_endianness(tensorflow::BundleHeaderProto::BIG); });
  index.Edit<BundleEntryProto>("w", [&](auto* entry) {
    entry->set_crc32c(tsl::crc32c::Mask(tsl::crc32c::Value(bytes.data(), bytes.size())));
  });
  index.Write();
  const std::vector<Tensor> restored = ExpectAsStock({{"w", tensorflow::DT_FLOAT, ""}});
  EXPECT_TRUE(IsSame(restored[0], Vector<float>({1, -2.5, 3e9})));
}

TEST_F(RestoreKernelTest, ACheckpointOnAnotherFileSystemIsRestored) {
  const Tensor value = Random(tensorflow::DT_FLOAT, {100'000});
  testing::WriteCheckpoint("ram://restore_kernel_test/variables", {{"w", value}});
  const Restored restored =
      RestoreOp("ram://restore_kernel_test/variables", {{"w", tensorflow::DT_FLOAT, ""}}, &memory_)
          .Run();
  ASSERT_TRUE(restored.status.ok()) << restored.status;
  EXPECT_TRUE(IsSame(restored.outputs[0], value));
}

TEST_F(RestoreKernelTest, OutputsAreTheDevicesMemoryAndNothingElseIs) {
  WriteBig();
  const Restored restored =
      Restore({{"big", tensorflow::DT_FLOAT, ""}, {"small", tensorflow::DT_FLOAT, ""}});
  ASSERT_TRUE(restored.status.ok()) << restored.status;
  EXPECT_EQ(memory_.memory.Statistics().allocation_count, 2);
  EXPECT_EQ(memory_.memory.Statistics().in_use_bytes, BigBytes() + 12);
}

// --- Refusals ------------------------------------------------------------------------------------

TEST_F(RestoreKernelTest, MissingTensorsAreNotFoundByName) {
  ExpectRefused({{"w", tensorflow::DT_FLOAT, ""}}, absl::StatusCode::kNotFound,
                {prefix_ + ".index"});
  WriteBig();
  ExpectRefused({{"small", tensorflow::DT_FLOAT, ""}, {"smell", tensorflow::DT_FLOAT, ""}},
                absl::StatusCode::kNotFound, {"'smell'", prefix_});
  std::filesystem::remove(shard_);
  ExpectRefused({{"small", tensorflow::DT_FLOAT, ""}}, absl::StatusCode::kNotFound, {shard_});
  EXPECT_EQ(memory_.memory.Statistics().allocation_count, 0);
}

TEST_F(RestoreKernelTest, AnotherDtypeOrShapeOrSliceIsInvalidArgument) {
  WriteBig();
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  ExpectRefused({{"small", tensorflow::DT_INT32, ""}}, kInvalid, {"'small'", "int32", "float"});
  ExpectRefused({{"small", tensorflow::DT_FLOAT, "4 0,2"}}, kInvalid, {"'small'", "4 0,2", "[3]"});
  ExpectRefused({{"small", tensorflow::DT_FLOAT, "no slice"}}, kInvalid, {});
  // TensorFlow's own message for a slice beyond its shape.
  ExpectRefused({{"small", tensorflow::DT_FLOAT, "3 2,2"}}, absl::StatusCode::kInternal, {"2,2"});
  EXPECT_EQ(memory_.memory.Statistics().allocation_count, 0);
}

TEST_F(RestoreKernelTest, InputsThatDoNotFitTheDtypesAreInvalidArgument) {
  WriteBig();
  const std::vector<Tensor> kBad = {Strings({}), Strings({"small", "small"}),
                                    Strings({"small", "small"})};
  for (size_t input = 0; input < kBad.size(); ++input) {
    RestoreOp op = Op({{"small", tensorflow::DT_FLOAT, ""}});
    op.inputs()[input] = kBad[input];
    EXPECT_EQ(op.Run().status.code(), absl::StatusCode::kInvalidArgument) << input;
  }
}

TEST_F(RestoreKernelTest, FlippedByteIsDataLossWithTensorFileAndOffset) {
  WriteBig();
  const std::string whole = ReadFile(shard_);
  const auto big_bytes = static_cast<size_t>(BigBytes());
  const auto piece_bytes = ShardReader::kPieceBytes;
  for (const size_t position : {size_t{0}, piece_bytes - 1, piece_bytes, big_bytes / 2 + 1,
                                big_bytes - 1, big_bytes, whole.size() - 1}) {
    std::string flipped = whole;
    flipped[position] = static_cast<char>(flipped[position] ^ 0x10);
    WriteFile(shard_, flipped);
    const bool is_in_big = position < big_bytes;
    ExpectRefused(
        {{"big", tensorflow::DT_FLOAT, ""}, {"small", tensorflow::DT_FLOAT, ""}},
        absl::StatusCode::kDataLoss,
        {is_in_big ? "'big' at byte 0" : "'small' at byte " + std::to_string(big_bytes), shard_});
  }
  EXPECT_EQ(memory_.memory.Statistics().in_use_bytes, 0);
}

TEST_F(RestoreKernelTest, AFlippedByteOfStringsOrOfASliceIsDataLoss) {
  testing::WriteCheckpoint(prefix_, {{"words", Strings({"mill", "pond", "flat"})}});
  const std::string words = ReadFile(shard_);
  for (size_t position = 0; position < words.size(); ++position) {
    std::string flipped = words;
    flipped[position] = static_cast<char>(flipped[position] ^ 1);
    WriteFile(shard_, flipped);
    const absl::Status status = Restore({{"words", tensorflow::DT_STRING, ""}}).status;
    // The only other fault that can be found first is a string longer than the bytes.
    EXPECT_TRUE(absl::IsDataLoss(status) || absl::IsOutOfRange(status)) << position << status;
    EXPECT_NE(status.message().find("'words'"), std::string::npos) << status;
  }
}

TEST_F(RestoreKernelTest, TruncatedShardIsOutOfRangeWithoutAllocation) {
  WriteBig();
  testing::CutFile(shard_, BigBytes() + 5);
  ExpectRefused(
      {{"small", tensorflow::DT_FLOAT, ""}}, absl::StatusCode::kOutOfRange,
      {"'small'", shard_, std::to_string(BigBytes() + 12), std::to_string(BigBytes() + 5)});
  testing::CutFile(shard_, 0);
  ExpectRefused({{"big", tensorflow::DT_FLOAT, ""}}, absl::StatusCode::kOutOfRange,
                {"'big'", std::to_string(BigBytes()), "the file has 0"});
  EXPECT_EQ(memory_.memory.Statistics().allocation_count, 0);
}

TEST_F(RestoreKernelTest, OversizedIndexEntriesAllocateNothing) {
  WriteBig();
  IndexFile index(prefix_);
  index.Edit<BundleEntryProto>("small", [](auto* entry) {
    entry->mutable_shape()->mutable_dim(0)->set_size(int64_t{1} << 50);
    entry->set_size(int64_t{4} << 50);
  });
  index.Write();
  ExpectRefused({{"small", tensorflow::DT_FLOAT, ""}}, absl::StatusCode::kOutOfRange, {"'small'"});
  EXPECT_EQ(memory_.memory.Statistics().allocation_count, 0);
}

TEST_F(RestoreKernelTest, FailedAllocationIsExhaustedAndLeaksNothing) {
  NamedTensors tensors;
  std::vector<Wish> wishes;
  for (int i = 0; i < 4; ++i) {
    tensors.emplace_back("t" + std::to_string(i), Random(tensorflow::DT_FLOAT, {250'000}));
    wishes.push_back({tensors.back().first, tensorflow::DT_FLOAT, ""});
  }
  testing::WriteCheckpoint(prefix_, tensors);
  for (int fitting = 0; fitting < 4; ++fitting) {
    FakeAllocator memory(fitting * 1'000'000 + 100);
    EXPECT_EQ(RestoreOp(prefix_, wishes, &memory).Run().status.code(),
              absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(memory.memory.Statistics().allocation_count, fitting);
    EXPECT_EQ(memory.memory.Statistics().in_use_bytes, 0);
  }
}

// --- LoadScope ---

TEST_F(RestoreKernelTest, ProgressReachesTheExactSum) {
  WriteBig();
  LoadControl control;
  const LoadScope scope(&control);
  ASSERT_TRUE(Restore({{"big", tensorflow::DT_FLOAT, ""}}).status.ok());
  EXPECT_EQ(control.restored_bytes, BigBytes());
  ASSERT_TRUE(Restore({{"small", tensorflow::DT_FLOAT, ""}}).status.ok());
  EXPECT_EQ(control.restored_bytes, BigBytes() + 12);
}

TEST_F(RestoreKernelTest, ProgressReachesTheSumOfTensorBytes) {
  testing::WriteCheckpoint(prefix_, {{"numbers", Random(tensorflow::DT_DOUBLE, {1'000, 70})},
                                     {"words", Strings({"mill", std::string(500, 'x')})}});
  LoadControl control;
  const LoadScope scope(&control);
  ASSERT_TRUE(
      Restore({{"numbers", tensorflow::DT_DOUBLE, ""}, {"words", tensorflow::DT_STRING, ""}})
          .status.ok());
  const std::vector<size_t> bytes = TensorBytes(ReadCheckpointIndex(prefix_).value());
  EXPECT_EQ(control.restored_bytes, std::accumulate(bytes.begin(), bytes.end(), int64_t{0}));
}

TEST_F(RestoreKernelTest, ATensorWithAWrongBitDoesNotCount) {
  WriteBig();
  std::string bytes = ReadFile(shard_);
  bytes[bytes.size() - 1] ^= 1;
  WriteFile(shard_, bytes);
  LoadControl control;
  const LoadScope scope(&control);
  ExpectRefused({{"big", tensorflow::DT_FLOAT, ""}, {"small", tensorflow::DT_FLOAT, ""}},
                absl::StatusCode::kDataLoss, {"'small'"});
  EXPECT_EQ(control.restored_bytes, BigBytes());
}

TEST_F(RestoreKernelTest, ACancelledLoadRestoresNothing) {
  WriteBig();
  LoadControl control;
  control.is_cancelled = true;
  const LoadScope scope(&control);
  ExpectRefused({{"big", tensorflow::DT_FLOAT, ""}}, absl::StatusCode::kCancelled, {});
  EXPECT_EQ(control.restored_bytes, 0);
  EXPECT_EQ(memory_.memory.Statistics().allocation_count, 0);
}

// Restores the big tensor so slowly that it would take weeks, on a thread of its own.
class SlowRestore {
 public:
  SlowRestore(RestoreOp op, LoadControl* control)
      : thread_([this, op = std::move(op), control]() mutable {
          const LoadScope scope(control);
          restored_ = op.Run();
        }) {
    while (control->restored_bytes.load() == 0) std::this_thread::yield();
  }
  Restored Join() {
    thread_.join();
    return std::move(restored_);
  }

 private:
  Restored restored_;
  std::thread thread_;
};

TEST_F(RestoreKernelTest, LoadCancelledHalfWayLeaksNothing) {
  WriteBig();
  LoadControl control;
  control.restore_bytes_per_second_max = 1;
  SlowRestore slow(Op({{"big", tensorflow::DT_FLOAT, ""}}), &control);
  control.is_cancelled = true;
  EXPECT_EQ(slow.Join().status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(control.restored_bytes, ShardReader::kPieceBytes);
  EXPECT_EQ(memory_.memory.Statistics().in_use_bytes, 0);
}

TEST_F(RestoreKernelTest, ALimitThatIsLiftedHalfWayIsSeen) {
  WriteBig();
  LoadControl control;
  control.restore_bytes_per_second_max = 1;
  SlowRestore slow(Op({{"big", tensorflow::DT_FLOAT, ""}}), &control);
  control.restore_bytes_per_second_max = 0;
  const Restored restored = slow.Join();
  ASSERT_TRUE(restored.status.ok()) << restored.status;
  EXPECT_TRUE(IsSame(restored.outputs[0], big_));
  EXPECT_EQ(control.restored_bytes, BigBytes());
}

TEST_F(RestoreKernelTest, TheLimitOfTheScopeSlowsTheRestore) {
  WriteBig();
  LoadControl control;
  control.restore_bytes_per_second_max = 20'000'000;
  const LoadScope scope(&control);
  const int64_t start_ns = base::MonotonicNs();
  ASSERT_TRUE(Restore({{"big", tensorflow::DT_FLOAT, ""}}).status.ok());
  // The restore does not wait for its last piece.
  const auto paid_bytes = static_cast<double>(BigBytes() - int64_t{ShardReader::kPieceBytes});
  EXPECT_GE(static_cast<double>(base::MonotonicNs() - start_ns), paid_bytes / 20e6 * 1e9 * 0.9);
}

TEST_F(RestoreKernelTest, ARestoreBesideRequestsIsPaced) {
  WriteBig();
  LoadControl control;
  control.restore_ns_target = 10'000'000'000;
  const CoreShareScope request;
  const LoadScope scope(&control);
  const int64_t start_ns = base::MonotonicNs();
  ASSERT_TRUE(Restore({{"big", tensorflow::DT_FLOAT, ""}}).status.ok());
  const auto paid_bytes = static_cast<double>(BigBytes() - int64_t{ShardReader::kPieceBytes});
  EXPECT_GE(static_cast<double>(base::MonotonicNs() - start_ns), paid_bytes / 250e6 * 1e9 * 0.9);
}

// A cast of so many seconds would overflow.
TEST_F(RestoreKernelTest, AnEndlessTargetIsATargetToo) {
  LoadControl control;
  control.SetRestoreTarget(1e300);
  EXPECT_EQ(control.restore_ns_target.load(), 1'000'000'000'000'000'000);
}

// The form of TensorFlow 2's export: the op is within a function, which StatefulPartitionedCall
// calls.
tensorflow::GraphDef FunctionThatRestores(const std::string& prefix, const std::string& name) {
  using tensorflow::FunctionDefHelper;
  const auto node_of =
      [](const std::string& node, const std::string& op, const std::vector<std::string>& inputs,
         std::vector<std::pair<std::string, FunctionDefHelper::AttrValueWrapper>> attributes) {
        FunctionDefHelper::Node made;
        made.ret = {node};
        made.op = op;
        made.arg = inputs;
        made.attr = std::move(attributes);
        return made;
      };
  const std::vector<DataType> dtypes = {tensorflow::DT_FLOAT};
  tensorflow::GraphDef graph;
  graph.mutable_versions()->set_producer(TF_GRAPH_DEF_VERSION);
  *graph.mutable_library()->add_function() = FunctionDefHelper::Create(
      "restore_all", {"prefix: string"}, {"w: float"}, {},
      {node_of("names", "Const", {},
               {{"value", Strings({name})}, {"dtype", tensorflow::DT_STRING}}),
       node_of("slices", "Const", {}, {{"value", Strings({""})}, {"dtype", tensorflow::DT_STRING}}),
       node_of("restore", "RestoreV2", {"prefix", "names:output:0", "slices:output:0"},
               {{"dtypes", dtypes}})},
      {{"w", "restore:tensors:0"}});
  tensorflow::NodeDef* const node = graph.add_node();
  EXPECT_TRUE(tensorflow::NodeDefBuilder("prefix", "Const")
                  .Attr("dtype", tensorflow::DT_STRING)
                  .Attr("value", testing::Scalar<tstring>(prefix))
                  .Finalize(node)
                  .ok());
  tensorflow::NameAttrList function;
  function.set_name("restore_all");
  EXPECT_TRUE(tensorflow::NodeDefBuilder("call", "StatefulPartitionedCall")
                  .Input({{"prefix", 0, tensorflow::DT_STRING}})
                  .Attr("Tin", std::vector<DataType>{tensorflow::DT_STRING})
                  .Attr("Tout", dtypes)
                  .Attr("f", function)
                  .Finalize(graph.add_node())
                  .ok());
  return graph;
}

TEST_F(RestoreKernelTest, WithinAFunctionTheScopeOfTheCallingThreadIsFound) {
  WriteBig();
  const std::unique_ptr<tensorflow::Session> session(tensorflow::NewSession({}));
  ASSERT_TRUE(session->Create(FunctionThatRestores(prefix_, "big")).ok());
  tensorflow::RunOptions options;
  options.set_inter_op_thread_pool(-1);
  LoadControl control;
  const LoadScope scope(&control);
  std::vector<Tensor> outputs;
  const absl::Status ran = session->Run(options, {}, {"call:0"}, {}, &outputs, nullptr);
  ASSERT_TRUE(ran.ok()) << ran;
  EXPECT_TRUE(IsSame(outputs[0], big_));
  EXPECT_EQ(control.restored_bytes, BigBytes());
}

}  // namespace
}  // namespace millpond::tf
