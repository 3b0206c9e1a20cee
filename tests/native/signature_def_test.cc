#include "native/tf/signature_def.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "native/tensor/dtype.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/framework/types.pb.h"
#include "tensorflow/core/protobuf/meta_graph.pb.h"

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
