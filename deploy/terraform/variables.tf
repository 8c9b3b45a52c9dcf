# `maskwright env` writes terraform.tfvars.json with all of these. What a variable leaves null is not made.

variable "project" {
  description = "ID of the project."
  type        = string
  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{4,28}[a-z0-9]$", var.project))
    error_message = "project is the ID of a project: 6 to 30 of a-z, 0-9 and -."
  }
}

variable "name" {
  description = "Name of the environment, with which the name of everything made here begins."
  type        = string
  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,18}[a-z0-9]$", var.name))
    error_message = "name has 2 to 20 of a-z, 0-9 and -, and begins with a letter."
  }
}

variable "region" {
  description = "Home of the image repository, and of NFS in tier REGIONAL."
  type        = string
  validation {
    condition     = can(regex("^[a-z]+-[a-z]+[0-9]+$", var.region))
    error_message = "region is a name such as us-east5."
  }
}

variable "zone" {
  description = "Home of the disk, NFS and the seeding machine."
  type        = string
  validation {
    condition     = can(regex("^[a-z]+-[a-z]+[0-9]+-[a-z]$", var.zone))
    error_message = "zone is a name such as us-east5-b."
  }
}

variable "regions" {
  description = "Every region where hosts may ever be: each gets a subnetwork."
  type        = list(string)
  validation {
    condition     = length(var.regions) > 0 && length(distinct(var.regions)) == length(var.regions)
    error_message = "regions names each region once, and at least one."
  }
}

variable "labels" {
  description = "Labels of everything that can carry them."
  type        = map(string)
  validation {
    condition     = contains(keys(var.labels), "maskwright-environment")
    error_message = "labels need maskwright-environment, by which `env down` finds what is left."
  }
  validation {
    condition = alltrue([
      for key, value in var.labels :
      can(regex("^[a-z][a-z0-9_-]{0,62}$", key)) && can(regex("^[a-z0-9_-]{0,63}$", value))
    ])
    error_message = "labels consist of a-z, 0-9, _ and -, at most 63 characters each."
  }
}

variable "nat" {
  description = "Whether hosts, which have no addresses of their own, reach the internet."
  type        = bool
  default     = false
}

variable "network" {
  description = "A network that exists, with its subnetworks by region; nothing is made in it. null: one is made here."
  type = object({
    id          = string # projects/PROJECT/global/networks/NAME
    subnetworks = map(string)
    shared      = bool # whether it is a host project's (Shared VPC)
  })
  default = null
}

variable "bucket_location" {
  description = "Region or multi-region of the buckets."
  type        = string
}

variable "dataset_bucket" {
  description = "Name of the bucket with the data."
  type        = string
}

variable "runs_bucket" {
  description = "Name of the bucket with runs and checkpoints."
  type        = string
}

variable "jobs_bucket" {
  description = "Name of the bucket with the orders of hosts and their reports."
  type        = string
}

variable "mount_point" {
  description = "Folder on hosts that holds nfs_share and shared_pd."
  type        = string
  default     = "/mnt/common"
  validation {
    condition     = can(regex("^(/[A-Za-z0-9._-]+)+$", var.mount_point))
    error_message = "mount_point is an absolute path."
  }
}

variable "nfs" {
  description = "Filestore; null: none."
  type = object({
    tier        = optional(string, "BASIC_HDD")
    capacity_gb = optional(number, 1024)
    share       = optional(string, "share")
  })
  default = null
  validation {
    condition     = var.nfs == null ? true : contains(["BASIC_HDD", "BASIC_SSD", "ZONAL", "REGIONAL"], var.nfs.tier)
    error_message = "nfs.tier is BASIC_HDD, BASIC_SSD, ZONAL or REGIONAL."
  }
  validation {
    # docs.cloud.google.com/filestore/docs/service-tiers
    condition     = var.nfs == null ? true : var.nfs.capacity_gb >= (var.nfs.tier == "BASIC_SSD" ? 2560 : 1024)
    error_message = "nfs.capacity_gb is at least 1024, and 2560 in tier BASIC_SSD."
  }
}

variable "disk" {
  description = "The data disk: written by the seeding machine while seeded is false, then read by all hosts."
  type = object({
    name    = string
    type    = string
    size_gb = number
    seeded  = bool
  })
  default = null
  validation {
    condition     = var.disk == null ? true : contains(["hyperdisk-ml", "pd-balanced", "pd-ssd", "pd-standard"], var.disk.type)
    error_message = "disk.type is one that many hosts can read: hyperdisk-ml, pd-balanced, pd-ssd or pd-standard."
  }
}

variable "seeder" {
  description = "The temporary machine that fills the disk."
  type = object({
    machine_type = string
    boot_disk    = string
    image        = string
    source       = string
    prepare      = optional(string)
    result       = string
    max_hours    = number
  })
  default = null
  validation {
    condition     = var.seeder == null ? true : startswith(var.seeder.source, "gs://") && startswith(var.seeder.result, "gs://")
    error_message = "seeder.source and seeder.result are in buckets: gs://…"
  }
}

variable "slice" {
  description = "A TPU slice: one instance group whose hosts are joined by the chips' own network."
  type = object({
    machine_type       = string
    topology           = optional(string)
    hosts              = number
    accelerator        = optional(string)
    boot_disk          = string
    data_disks         = list(string)
    zone               = string
    region             = string
    provisioning_model = string
    reservation        = optional(string)
    max_run_hours      = optional(number)
    image              = string
    attach_disk        = bool
  })
  default = null
  validation {
    condition = (
      var.slice == null ? true :
      contains(["STANDARD", "SPOT", "FLEX_START", "RESERVATION_BOUND"], var.slice.provisioning_model)
    )
    error_message = "slice.provisioning_model is STANDARD, SPOT, FLEX_START or RESERVATION_BOUND."
  }
}

variable "group" {
  description = "A group of hosts with GPUs, or without any accelerator."
  type = object({
    machine_type       = string
    topology           = optional(string)
    hosts              = number
    accelerator        = optional(string)
    boot_disk          = string
    data_disks         = list(string)
    zone               = string
    region             = string
    provisioning_model = string
    reservation        = optional(string)
    max_run_hours      = optional(number)
    image              = string
    attach_disk        = bool
  })
  default = null
  validation {
    condition     = var.group == null ? true : var.group.hosts >= 1 && floor(var.group.hosts) == var.group.hosts
    error_message = "group.hosts is the number of hosts, 1 or more."
  }
  validation {
    condition = (
      var.group == null ? true :
      contains(["STANDARD", "SPOT", "FLEX_START", "RESERVATION_BOUND"], var.group.provisioning_model)
    )
    error_message = "group.provisioning_model is STANDARD, SPOT, FLEX_START or RESERVATION_BOUND."
  }
}

variable "host" {
  description = "What every host runs."
  type = object({
    container    = string
    setup        = optional(string)
    idle_minutes = optional(number)
    version      = string
  })
}

variable "delete_data" {
  description = "Takes the protection off buckets and NFS, before a destroy."
  type        = bool
  default     = false
}
