"""The messages and the service of package `inference`: the Open Inference Protocol with Triton's extensions.

Names and numbers are the public interface: grpc_service.proto and model_config.proto of Triton's `common`.
"""

from typing import Final

from ekiben.wire.protos.schema import ProtoFile, Schema

__all__ = ["OIP"]

_PARAMETER: Final = (
    "1 bool_param bool@parameter_choice; 2 int64_param int64@parameter_choice; 3 string_param string@parameter_choice; "
)
_LOG_SETTING: Final = (
    "1 bool_param bool@parameter_choice; 2 uint32_param uint32@parameter_choice; 3 string_param string@parameter_choice"
)
_REPOSITORY_CHANGE: Final = (
    "1 repository_name string; 2 model_name string; 3 parameters map<string,ModelRepositoryParameter>"
)
_NAMED: Final = "1 name string; 2 version string"

_MODEL_CONFIG: Final = ProtoFile(
    "model_config.proto",
    "inference",
    # Of Triton's schema, what `oip_documents.model_config_body` says.
    {
        "ModelConfig": (
            "1 name string; 2 platform string; 3 version_policy ModelVersionPolicy; 4 max_batch_size int32; "
            "5 input ModelInput*; 6 output ModelOutput*; 7 instance_group ModelInstanceGroup*; "
            "8 default_model_filename string; 9 cc_model_filenames map<string,string>; "
            "10 metric_tags map<string,string>; 11 dynamic_batching ModelDynamicBatching@scheduling_choice; "
            "12 optimization ModelOptimizationPolicy; 14 parameters map<string,ModelParameter>; "
            "16 model_warmup ModelWarmup*; 17 backend string; 19 model_transaction_policy ModelTransactionPolicy; "
            "20 batch_input BatchInput*; 21 batch_output BatchOutput*; 25 runtime string"
        ),
        "ModelVersionPolicy": (
            "1 latest ModelVersionPolicy.Latest@policy_choice; 2 all ModelVersionPolicy.All@policy_choice; "
            "3 specific ModelVersionPolicy.Specific@policy_choice"
        ),
        "ModelVersionPolicy.Latest": "1 num_versions uint32",
        "ModelVersionPolicy.All": "",
        "ModelVersionPolicy.Specific": "1 versions int64*",
        "ModelInput": (
            "1 name string; 2 data_type DataType; 3 format ModelInput.Format; 4 dims int64*; 6 is_shape_tensor bool; "
            "7 allow_ragged_batch bool; 8 optional bool; 9 is_non_linear_format_io bool"
        ),
        "ModelOutput": (
            "1 name string; 2 data_type DataType; 3 dims int64*; 4 label_filename string; 6 is_shape_tensor bool; "
            "7 is_non_linear_format_io bool"
        ),
        "ModelInstanceGroup": (
            "1 name string; 2 count int32; 3 gpus int32*; 4 kind ModelInstanceGroup.Kind; 5 profile string*; "
            "7 passive bool; 8 secondary_devices ModelInstanceGroup.SecondaryDevice*; 9 host_policy string"
        ),
        "ModelInstanceGroup.SecondaryDevice": (
            "1 kind ModelInstanceGroup.SecondaryDevice.SecondaryDeviceKind; 2 device_id int64"
        ),
        "BatchInput": "1 kind BatchInput.Kind; 2 target_name string*; 3 data_type DataType; 4 source_input string*",
        "BatchOutput": "1 target_name string*; 2 kind BatchOutput.Kind; 3 source_input string*",
        "ModelWarmup": "1 name string; 2 batch_size uint32; 3 inputs map<string,ModelWarmup.Input>; 4 count uint32",
        "ModelWarmup.Input": (
            "1 data_type DataType; 2 dims int64*; 3 zero_data bool@input_data_type; "
            "4 random_data bool@input_data_type; 5 input_data_file string@input_data_type"
        ),
        "ModelDynamicBatching": (
            "1 preferred_batch_size int32*; 2 max_queue_delay_microseconds uint64; 3 preserve_ordering bool; "
            "4 priority_levels uint64; 5 default_priority_level uint64; 6 default_queue_policy ModelQueuePolicy; "
            "7 priority_queue_policy map<uint64,ModelQueuePolicy>"
        ),
        "ModelQueuePolicy": (
            "1 timeout_action ModelQueuePolicy.TimeoutAction; 2 default_timeout_microseconds uint64; "
            "3 allow_timeout_override bool; 4 max_queue_size uint32"
        ),
        "ModelOptimizationPolicy": (
            "2 priority ModelOptimizationPolicy.ModelPriority; "
            "5 input_pinned_memory ModelOptimizationPolicy.PinnedMemoryBuffer; "
            "6 output_pinned_memory ModelOptimizationPolicy.PinnedMemoryBuffer; "
            "7 gather_kernel_buffer_threshold uint32; 8 eager_batching bool"
        ),
        "ModelOptimizationPolicy.PinnedMemoryBuffer": "1 enable bool",
        "ModelParameter": "1 string_value string",
        "ModelTransactionPolicy": "1 decoupled bool",
    },
    {
        "DataType": (
            "TYPE_INVALID TYPE_BOOL TYPE_UINT8 TYPE_UINT16 TYPE_UINT32 TYPE_UINT64 TYPE_INT8 TYPE_INT16 TYPE_INT32 "
            "TYPE_INT64 TYPE_FP16 TYPE_FP32 TYPE_FP64 TYPE_STRING TYPE_BF16"
        ),
        "ModelInput.Format": "FORMAT_NONE FORMAT_NHWC FORMAT_NCHW",
        "ModelInstanceGroup.Kind": "KIND_AUTO KIND_GPU KIND_CPU KIND_MODEL",
        "ModelInstanceGroup.SecondaryDevice.SecondaryDeviceKind": "KIND_NVDLA",
        "BatchInput.Kind": (
            "BATCH_ELEMENT_COUNT BATCH_ACCUMULATED_ELEMENT_COUNT BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO "
            "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE BATCH_ITEM_SHAPE BATCH_ITEM_SHAPE_FLATTEN"
        ),
        "BatchOutput.Kind": "BATCH_SCATTER_WITH_INPUT_SHAPE",
        "ModelOptimizationPolicy.ModelPriority": "PRIORITY_DEFAULT PRIORITY_MAX PRIORITY_MIN",
        "ModelQueuePolicy.TimeoutAction": "REJECT DELAY",
    },
)

_SERVICE: Final = ProtoFile(
    "grpc_service.proto",
    "inference",
    {
        "ServerLiveRequest": "",
        "ServerLiveResponse": "1 live bool",
        "ServerReadyRequest": "",
        "ServerReadyResponse": "1 ready bool",
        "ModelReadyRequest": _NAMED,
        "ModelReadyResponse": "1 ready bool",
        "ServerMetadataRequest": "",
        "ServerMetadataResponse": "1 name string; 2 version string; 3 extensions string*",
        "ModelMetadataRequest": _NAMED,
        "ModelMetadataResponse": (
            "1 name string; 2 versions string*; 3 platform string; 4 inputs ModelMetadataResponse.TensorMetadata*; "
            "5 outputs ModelMetadataResponse.TensorMetadata*"
        ),
        "ModelMetadataResponse.TensorMetadata": "1 name string; 2 datatype string; 3 shape int64*",
        "InferParameter": (
            _PARAMETER + "4 double_param double@parameter_choice; 5 uint64_param uint64@parameter_choice"
        ),
        "InferTensorContents": (
            "1 bool_contents bool*; 2 int_contents int32*; 3 int64_contents int64*; 4 uint_contents uint32*; "
            "5 uint64_contents uint64*; 6 fp32_contents float*; 7 fp64_contents double*; 8 bytes_contents bytes*"
        ),
        "ModelInferRequest": (
            "1 model_name string; 2 model_version string; 3 id string; 4 parameters map<string,InferParameter>; "
            "5 inputs ModelInferRequest.InferInputTensor*; 6 outputs ModelInferRequest.InferRequestedOutputTensor*; "
            "7 raw_input_contents bytes*"
        ),
        "ModelInferRequest.InferInputTensor": (
            "1 name string; 2 datatype string; 3 shape int64*; 4 parameters map<string,InferParameter>; "
            "5 contents InferTensorContents"
        ),
        "ModelInferRequest.InferRequestedOutputTensor": "1 name string; 2 parameters map<string,InferParameter>",
        "ModelInferResponse": (
            "1 model_name string; 2 model_version string; 3 id string; 4 parameters map<string,InferParameter>; "
            "5 outputs ModelInferResponse.InferOutputTensor*; 6 raw_output_contents bytes*"
        ),
        "ModelInferResponse.InferOutputTensor": (
            "1 name string; 2 datatype string; 3 shape int64*; 4 parameters map<string,InferParameter>; "
            "5 contents InferTensorContents"
        ),
        "ModelStreamInferResponse": "1 error_message string; 2 infer_response ModelInferResponse",
        "ModelConfigRequest": _NAMED,
        "ModelConfigResponse": "1 config ModelConfig",
        "ModelStatisticsRequest": _NAMED,
        "StatisticDuration": "1 count uint64; 2 ns uint64",
        "InferStatistics": (
            "1 success StatisticDuration; 2 fail StatisticDuration; 3 queue StatisticDuration; "
            "4 compute_input StatisticDuration; 5 compute_infer StatisticDuration; "
            "6 compute_output StatisticDuration; 7 cache_hit StatisticDuration; 8 cache_miss StatisticDuration"
        ),
        "InferResponseStatistics": (
            "1 compute_infer StatisticDuration; 2 compute_output StatisticDuration; 3 success StatisticDuration; "
            "4 fail StatisticDuration; 5 empty_response StatisticDuration; 6 cancel StatisticDuration"
        ),
        "InferBatchStatistics": (
            "1 batch_size uint64; 2 compute_input StatisticDuration; 3 compute_infer StatisticDuration; "
            "4 compute_output StatisticDuration"
        ),
        "MemoryUsage": "1 type string; 2 id int64; 3 byte_size uint64",
        "ModelStatistics": (
            "1 name string; 2 version string; 3 last_inference uint64; 4 inference_count uint64; "
            "5 execution_count uint64; 6 inference_stats InferStatistics; 7 batch_stats InferBatchStatistics*; "
            "8 memory_usage MemoryUsage*; 9 response_stats map<string,InferResponseStatistics>"
        ),
        "ModelStatisticsResponse": "1 model_stats ModelStatistics*",
        "ModelRepositoryParameter": _PARAMETER + "4 bytes_param bytes@parameter_choice",
        "RepositoryIndexRequest": "1 repository_name string; 2 ready bool",
        "RepositoryIndexResponse": "1 models RepositoryIndexResponse.ModelIndex*",
        "RepositoryIndexResponse.ModelIndex": "1 name string; 2 version string; 3 state string; 4 reason string",
        "RepositoryModelLoadRequest": _REPOSITORY_CHANGE,
        "RepositoryModelLoadResponse": "",
        "RepositoryModelUnloadRequest": _REPOSITORY_CHANGE,
        "RepositoryModelUnloadResponse": "",
        "SystemSharedMemoryStatusRequest": "1 name string",
        "SystemSharedMemoryStatusResponse": "1 regions map<string,SystemSharedMemoryStatusResponse.RegionStatus>",
        "SystemSharedMemoryStatusResponse.RegionStatus": (
            "1 name string; 2 key string; 3 offset uint64; 4 byte_size uint64"
        ),
        "SystemSharedMemoryRegisterRequest": "1 name string; 2 key string; 3 offset uint64; 4 byte_size uint64",
        "SystemSharedMemoryRegisterResponse": "",
        "SystemSharedMemoryUnregisterRequest": "1 name string",
        "SystemSharedMemoryUnregisterResponse": "",
        "CudaSharedMemoryStatusRequest": "1 name string",
        "CudaSharedMemoryStatusResponse": "1 regions map<string,CudaSharedMemoryStatusResponse.RegionStatus>",
        "CudaSharedMemoryStatusResponse.RegionStatus": "1 name string; 2 device_id uint64; 3 byte_size uint64",
        "CudaSharedMemoryRegisterRequest": "1 name string; 2 raw_handle bytes; 3 device_id int64; 4 byte_size uint64",
        "CudaSharedMemoryRegisterResponse": "",
        "CudaSharedMemoryUnregisterRequest": "1 name string",
        "CudaSharedMemoryUnregisterResponse": "",
        "TraceSettingRequest": "1 settings map<string,TraceSettingRequest.SettingValue>; 2 model_name string",
        "TraceSettingRequest.SettingValue": "1 value string*",
        "TraceSettingResponse": "1 settings map<string,TraceSettingResponse.SettingValue>",
        "TraceSettingResponse.SettingValue": "1 value string*",
        "LogSettingsRequest": "1 settings map<string,LogSettingsRequest.SettingValue>",
        "LogSettingsRequest.SettingValue": _LOG_SETTING,
        "LogSettingsResponse": "1 settings map<string,LogSettingsResponse.SettingValue>",
        "LogSettingsResponse.SettingValue": _LOG_SETTING,
    },
    services={
        "GRPCInferenceService": "; ".join(
            "ModelStreamInfer stream ModelInferRequest > stream ModelStreamInferResponse"
            if name == "ModelStreamInfer"
            else f"{name} {name}Request > {name}Response"
            for name in (
                "ServerLive",
                "ServerReady",
                "ModelReady",
                "ServerMetadata",
                "ModelMetadata",
                "ModelInfer",
                "ModelStreamInfer",
                "ModelConfig",
                "ModelStatistics",
                "RepositoryIndex",
                "RepositoryModelLoad",
                "RepositoryModelUnload",
                "SystemSharedMemoryStatus",
                "SystemSharedMemoryRegister",
                "SystemSharedMemoryUnregister",
                "CudaSharedMemoryStatus",
                "CudaSharedMemoryRegister",
                "CudaSharedMemoryUnregister",
                "TraceSetting",
                "LogSettings",
            )
        )
    },
)

OIP: Final = Schema(_MODEL_CONFIG, _SERVICE)
"""Messages by their name in package `inference`."""
