#include "native/tf/signature_def.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "native/tensor/dtype.h"
#include "native/tf/tensor_storage.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/framework/types.pb.h"
#include "tensorflow/core/protobuf/meta_graph.pb.h"
#include "tensorflow/core/protobuf/struct.pb.h"
#include "tests/native/tensors.h"

namespace millpond::tf {
namespace {

TEST(MakeSignature, SortsByNameAndReadsDtypesAndShapes) {
  tensorflow::SignatureDef definition;
  definition.set_method_name("tensorflow/serving/predict");
  auto& z = (*definition.mutable_inputs())["z"];
  z.set_name("z:0");
  z.set_dtype(tensorflow::DT_FLOAT);
  for (const int64_t size : {int64_t{-1}, int64_t{3}, int64_t{-5}}) {
    z.mutable_tensor_shape()->add_dim()->set_size(size);
  }
  (*definition.mutable_inputs())["a"].mutable_tensor_shape()->set_unknown_rank(true);
  (*definition.mutable_inputs())["m"].set_name("m:0");
  const tensor::Signature signature = MakeSignature("serving_default", definition);
  ASSERT_EQ(signature.inputs.size(), 3);
  EXPECT_EQ(signature.method_name, "tensorflow/serving/predict");
  EXPECT_EQ(signature.inputs[0].name, "a");
  EXPECT_FALSE(signature.inputs[0].is_rank_known);
  EXPECT_FALSE(signature.inputs[1].is_rank_known);
  EXPECT_EQ(signature.inputs[2].tensor_name, "z:0");
  EXPECT_EQ(signature.inputs[2].dims, (std::vector<int64_t>{-1, 3, -1}));
  EXPECT_EQ(tensor::DescribeTensor(signature.inputs[2]), "float32[?,3,?]");
}

tensorflow::SignatureDef WithDefault(const tensorflow::Tensor& value) {
  tensorflow::SignatureDef definition;
  auto& x = (*definition.mutable_inputs())["x"];
  x.set_name("x:0");
  x.set_dtype(tensorflow::DT_FLOAT);
  value.AsProtoTensorContent(&(*definition.mutable_defaults())["x"]);
  return definition;
}

TEST(MakeSignature, ReadsTheDefaultOfAnInput) {
  const auto signature = MakeSignature("s", WithDefault(testing::Vector<float>({1, 2})));
  ASSERT_NE(signature.inputs[0].default_value, nullptr);
  EXPECT_TRUE(testing::IsSame(signature.inputs[0].default_value->storage().tensors[0],
                              testing::Vector<float>({1, 2})));
  EXPECT_EQ(signature.inputs[0].default_fault, "");
}

TEST(MakeSignature, SaysWhyADefaultCannotBeUsed) {
  const auto signature = MakeSignature("s", WithDefault(testing::Vector<int64_t>({1, 2})));
  EXPECT_EQ(signature.inputs[0].default_value, nullptr);
  EXPECT_EQ(signature.inputs[0].default_fault, "it is int64, and the input is float32[...]");
}

TEST(MakeSignature, KeepsCompositeOutputsApart) {
  tensorflow::SignatureDef definition;
  (*definition.mutable_outputs())["dense"].set_name("dense:0");
  auto& ragged = (*definition.mutable_outputs())["ragged"];
  ragged.set_dtype(tensorflow::DT_FLOAT);
  ragged.mutable_composite_tensor()->mutable_type_spec()->set_type_spec_class(
      tensorflow::TypeSpecProto::RAGGED_TENSOR_SPEC);
  auto& sparse = (*definition.mutable_outputs())["sparse"];
  sparse.set_dtype(tensorflow::DT_INT64);
  sparse.mutable_coo_sparse()->set_values_tensor_name("v:0");
  const tensor::Signature signature = MakeSignature("s", definition);
  ASSERT_EQ(signature.outputs.size(), 1);
  EXPECT_EQ(signature.obstacle, "");
  ASSERT_EQ(signature.composite_outputs.size(), 2);
  EXPECT_EQ(
      signature.composite_outputs[0].remedy,
      "output 'ragged' of signature 's' is a RaggedTensor of float32, and requests and replies "
      "hold dense tensors only: export its parts as outputs of their own (ragged.flat_values "
      "and ragged.nested_row_splits, or ragged.to_tensor())");
  EXPECT_EQ(signature.composite_outputs[1].remedy,
            "output 'sparse' of signature 's' is a SparseTensor of int64, and requests and replies "
            "hold dense tensors only: export its parts as outputs of their own (sparse.indices, "
            "sparse.values and sparse.dense_shape)");
}

TEST(MakeSignature, SignatureOfCompositeTensorsHasAnObstacle) {
  tensorflow::SignatureDef outputs;
  (*outputs.mutable_outputs())["y"].mutable_coo_sparse();
  EXPECT_NE(MakeSignature("s", outputs).obstacle.find("output 'y' of signature 's'"),
            std::string::npos);
  tensorflow::SignatureDef inputs;
  (*inputs.mutable_outputs())["y"].set_name("y:0");
  (*inputs.mutable_inputs())["x"].mutable_coo_sparse();
  EXPECT_NE(MakeSignature("s", inputs).obstacle.find("takes its parts (x.indices"),
            std::string::npos);
}

// The names that TensorFlow gives its types, with numpy's names for two of them.
std::string ExpectedName(int dtype) {
  if (!tensorflow::DataType_IsValid(dtype)) return "dtype " + std::to_string(dtype);
  if (dtype == tensorflow::DT_FLOAT) return "float32";
  if (dtype == tensorflow::DT_DOUBLE) return "float64";
  if (dtype == tensorflow::DT_FLOAT_REF) return "float32_ref";
  if (dtype == tensorflow::DT_DOUBLE_REF) return "float64_ref";
  return tensorflow::DataTypeString(static_cast<tensorflow::DataType>(dtype));
}

TEST(DtypeName, IsTensorFlowsNameOfEveryType) {
  for (int dtype = -1; dtype <= tensorflow::DataType_MAX + 1; ++dtype) {
    EXPECT_EQ(tensor::DtypeName(dtype), ExpectedName(dtype)) << dtype;
  }
}

}  // namespace
}  // namespace millpond::tf
