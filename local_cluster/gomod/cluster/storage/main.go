// Provisions volumes as directories of this machine, which is the cluster's only
// node. It runs as a process of the machine, so making or removing a directory
// needs no helper pod, and every access mode works, ReadWriteMany included.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"
)

type directories struct{ root, node string }

func (d directories) Provision(_ context.Context, options controller.ProvisionOptions) (*v1.PersistentVolume, controller.ProvisioningState, error) {
	claim := options.PVC
	if mode := claim.Spec.VolumeMode; mode != nil && *mode == v1.PersistentVolumeBlock {
		return nil, controller.ProvisioningFinished, fmt.Errorf("volumeMode Block is not supported: use Filesystem")
	}
	path := filepath.Join(d.root, options.PVName)
	if err := os.MkdirAll(path, 0o777); err != nil {
		return nil, controller.ProvisioningFinished, err
	}
	// MkdirAll's mode passes through the umask; pods of any user must be able to write.
	if err := os.Chmod(path, 0o777); err != nil {
		return nil, controller.ProvisioningFinished, err
	}
	return &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: options.PVName},
		Spec: v1.PersistentVolumeSpec{
			PersistentVolumeReclaimPolicy: *options.StorageClass.ReclaimPolicy,
			AccessModes:                   claim.Spec.AccessModes,
			Capacity:                      v1.ResourceList{v1.ResourceStorage: claim.Spec.Resources.Requests[v1.ResourceStorage]},
			// "local" rather than "hostPath": the kubelet applies a pod's fsGroup to it.
			PersistentVolumeSource: v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: path}},
			NodeAffinity: &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
				MatchExpressions: []v1.NodeSelectorRequirement{{
					Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{d.node},
				}},
			}}}},
		},
	}, controller.ProvisioningFinished, nil
}

func (d directories) Delete(_ context.Context, volume *v1.PersistentVolume) error {
	// From the name, not from the object's path: a path may be edited to point elsewhere.
	return os.RemoveAll(filepath.Join(d.root, filepath.Base(volume.Name)))
}

func main() {
	kubeconfig := flag.String("kubeconfig", "", "path of the kubeconfig")
	node := flag.String("node", "", "name of the node whose disk this is")
	root := flag.String("root", "", "directory that holds the volumes")
	name := flag.String("provisioner", "grpo.dev/local-directory", "provisioner named by the storage class")
	flag.Parse()
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		klog.Fatal(err)
	}
	client := kubernetes.NewForConfigOrDie(config)
	controller.NewProvisionController(context.Background(), client, *name,
		directories{root: *root, node: *node}, controller.LeaderElection(false)).Run(context.Background())
}
