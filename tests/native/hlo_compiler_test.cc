#include "native/tf/hlo_compiler.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "native/tf/packed_program.h"
#include "native/tf/signature_def.h"
#include "tensorflow/core/framework/tensor.h"
#include "tests/native/saved_model_files.h"
#include "xla/service/hlo.pb.h"

namespace millpond::tf {
namespace {

using testing::SavedModelFiles;

tensor::Signature DefaultSignature(SavedModelFiles& files) {
  const auto& signatures = files.meta_graph().signature_def();
  return MakeSignature("serving_default", signatures.at("serving_default"));
}

// Declares the shapes of the signature's tensors; -1 is an open dimension.
void DeclareShapes(const std::vector<int64_t>& input, const std::vector<int64_t>& output,
                   SavedModelFiles* files) {
  auto& signature = (*files->meta_graph().mutable_signature_def())["serving_default"];
  const auto declare = [](const std::vector<int64_t>& dims, tensorflow::TensorInfo* info) {
    info->mutable_tensor_shape()->set_unknown_rank(false);
    for (const int64_t size : dims) info->mutable_tensor_shape()->add_dim()->set_size(size);
  };
  for (auto& [name, info] : *signature.mutable_inputs()) declare(input, &info);
  for (auto& [name, info] : *signature.mutable_outputs()) declare(output, &info);
}

base::StatusOr<HloProgram> Translate(SavedModelFiles& files, int64_t rows) {
  const auto compiler = HloCompiler::Make(files.meta_graph(), DefaultSignature(files));
  if (!compiler.ok()) return compiler.status();
  return compiler.value()->Translate(rows);
}

// y = x * v of rows of three floats, as a trainer exports it.
SavedModelFiles RowModel(float factor) {
  SavedModelFiles files;
  files.AddPlaceholder("x", tensorflow::DT_FLOAT, {-1, 3});
  tensorflow::Tensor value(tensorflow::DT_FLOAT, {3});
  value.flat<float>().setConstant(factor);
  files.AddVariable("v", value);
  files.AddNode("y", "Mul", {"x", "v/read"}, testing::SetFloat);
  files.AddSignature("serving_default", {{"x", "x:0", tensorflow::DT_FLOAT}},
                     {{"y", "y:0", tensorflow::DT_FLOAT}});
  DeclareShapes({-1, 3}, {-1, 3}, &files);
  return files;
}

TEST(HloCompiler, TwoVersionsOfAGraphAreOneProgram) {
  SavedModelFiles first = RowModel(2);
  SavedModelFiles second = RowModel(3);
  const auto programs = {Translate(first, 4), Translate(second, 4), Translate(first, 4)};
  for (const auto& program : programs) {
    ASSERT_TRUE(program.ok()) << program.status().message();
    EXPECT_EQ(program.value().hlo, programs.begin()->value().hlo);
    EXPECT_EQ(program.value().output_dims, (std::vector<std::vector<int64_t>>{{4, 3}}));
  }
  const auto other_rows = Translate(first, 5);
  ASSERT_TRUE(other_rows.ok());
  EXPECT_NE(other_rows.value().hlo, programs.begin()->value().hlo);
}

TEST(PackedProgram, TwoVersionsOfAGraphAreOneProgram) {
  SavedModelFiles first = RowModel(2);
  SavedModelFiles second = RowModel(3);
  std::vector<std::string> packed;
  for (SavedModelFiles* files : {&first, &second, &first}) {
    packed.push_back(PackProgram(Translate(*files, 4).value().hlo, 1).value());
  }
  EXPECT_EQ(packed[1], packed[0]);
  EXPECT_EQ(packed[2], packed[0]);
  EXPECT_NE(PackProgram(Translate(first, 5).value().hlo, 1).value(), packed[0]);
}

TEST(PackedProgram, ItHasOneBlockEachWay) {
  SavedModelFiles files = RowModel(2);
  const auto packed = PackProgram(Translate(files, 5).value().hlo, 1);
  ASSERT_TRUE(packed.ok()) << packed.status().message();
  xla::HloModuleProto module;
  ASSERT_TRUE(module.ParseFromString(packed.value()));
  const xla::ProgramShapeProto& shape = module.host_program_shape();
  ASSERT_EQ(shape.parameters_size(), 2) << "the inputs, and the variable";
  for (const xla::ShapeProto& block : {shape.parameters(0), shape.result()}) {
    EXPECT_EQ(block.element_type(), xla::U32);
    ASSERT_EQ(block.dimensions_size(), 1);
    EXPECT_EQ(block.dimensions(0), 5 * 3);
  }
  EXPECT_EQ(shape.parameters(1).element_type(), xla::F32);
}

TEST(PackedProgram, WhatIsNoSuchProgramIsRefused) {
  SavedModelFiles files = RowModel(2);
  const std::string hlo = Translate(files, 4).value().hlo;
  EXPECT_EQ(PackProgram(hlo.substr(0, hlo.size() / 2), 1).status().code(), base::Code::kInternal);
  EXPECT_EQ(PackProgram(hlo, 3).status().code(), base::Code::kInternal);
}

TEST(HloCompiler, VariablesFollowTheInputs) {
  SavedModelFiles files = RowModel(2);
  const auto compiler = HloCompiler::Make(files.meta_graph(), DefaultSignature(files));
  ASSERT_TRUE(compiler.ok()) << compiler.status().message();
  ASSERT_EQ(compiler.value()->variables().size(), 1);
  EXPECT_EQ(compiler.value()->variables()[0].name, "v");
}

TEST(HloCompiler, AStringInputIsNamed) {
  SavedModelFiles files = testing::TableModel();
  const auto program = Translate(files, 1);
  EXPECT_EQ(program.status().code(), base::Code::kUnimplemented);
  EXPECT_NE(program.status().message().find("input 'word'"), std::string::npos)
      << program.status().message();
}

TEST(HloCompiler, AnOpenDimensionIsNamed) {
  SavedModelFiles files;
  files.AddPlaceholder("x", tensorflow::DT_FLOAT, {-1, -1});
  files.AddNode("y", "Neg", {"x"}, testing::SetFloat);
  files.AddSignature("serving_default", {{"x", "x:0", tensorflow::DT_FLOAT}},
                     {{"y", "y:0", tensorflow::DT_FLOAT}});
  DeclareShapes({-1, -1}, {-1, -1}, &files);
  const auto program = Translate(files, 1);
  EXPECT_EQ(program.status().code(), base::Code::kUnimplemented);
  EXPECT_NE(program.status().message().find("dimension 1 is open"), std::string::npos)
      << program.status().message();
}

TEST(HloCompiler, AnOutputOfAnotherShapeThanDeclaredIsRefused) {
  for (const std::vector<int64_t>& declared :
       {std::vector<int64_t>{-1, 2}, std::vector<int64_t>{-1, 4}, std::vector<int64_t>{-1}}) {
    SavedModelFiles files = RowModel(2);
    auto& signature = (*files.meta_graph().mutable_signature_def())["serving_default"];
    signature.mutable_outputs()->at("y").mutable_tensor_shape()->clear_dim();
    DeclareShapes({}, declared, &files);
    const auto program = Translate(files, 4);
    EXPECT_EQ(program.status().code(), base::Code::kUnimplemented);
    EXPECT_NE(program.status().message().find("by the graph"), std::string::npos)
        << program.status().message();
  }
}

TEST(HloCompiler, ATensorThatTheGraphLacksIsNamed) {
  for (const char* const name : {"y:", "y:x", "y:1", "y:-1", "z:0", "y:99999999999"}) {
    SavedModelFiles files = RowModel(2);
    auto& signature = (*files.meta_graph().mutable_signature_def())["serving_default"];
    signature.mutable_outputs()->at("y").set_name(name);
    const auto program = Translate(files, 4);
    EXPECT_EQ(program.status().code(), base::Code::kNotFound) << name;
    EXPECT_NE(program.status().message().find(name), std::string::npos);
  }
}

TEST(HloCompiler, AnOutputWithoutTheRowsIsRefused) {
  SavedModelFiles files;
  files.AddPlaceholder("x", tensorflow::DT_FLOAT, {-1});
  tensorflow::Tensor axis(tensorflow::DT_INT32, {1});
  axis.flat<int32_t>().setConstant(0);
  files.AddConst("axis", axis);
  files.AddNode("y", "Sum", {"x", "axis"}, [](tensorflow::NodeDef* node) {
    testing::SetFloat(node);
    (*node->mutable_attr())["Tidx"].set_type(tensorflow::DT_INT32);
  });
  files.AddSignature("serving_default", {{"x", "x:0", tensorflow::DT_FLOAT}},
                     {{"y", "y:0", tensorflow::DT_FLOAT}});
  DeclareShapes({-1}, {-1}, &files);
  const auto program = Translate(files, 2);
  EXPECT_EQ(program.status().code(), base::Code::kUnimplemented);
  EXPECT_NE(program.status().message().find("not as many rows"), std::string::npos)
      << program.status().message();
}

}  // namespace
}  // namespace millpond::tf
