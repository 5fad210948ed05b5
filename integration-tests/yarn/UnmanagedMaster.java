// Submits an application whose master runs here, and is that master: registers, gets containers with their tokens, gives them back, says goodbye.
// It prints one line for each step, which clients.py compares.

import java.util.ArrayList;
import java.util.List;
import org.apache.hadoop.io.Text;
import org.apache.hadoop.security.UserGroupInformation;
import org.apache.hadoop.security.token.Token;
import org.apache.hadoop.yarn.api.protocolrecords.AllocateResponse;
import org.apache.hadoop.yarn.api.protocolrecords.RegisterApplicationMasterResponse;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.ApplicationReport;
import org.apache.hadoop.yarn.api.records.ApplicationSubmissionContext;
import org.apache.hadoop.yarn.api.records.Container;
import org.apache.hadoop.yarn.api.records.ContainerLaunchContext;
import org.apache.hadoop.yarn.api.records.ContainerStatus;
import org.apache.hadoop.yarn.api.records.FinalApplicationStatus;
import org.apache.hadoop.yarn.api.records.Priority;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.client.api.AMRMClient;
import org.apache.hadoop.yarn.client.api.AMRMClient.ContainerRequest;
import org.apache.hadoop.yarn.client.api.NMTokenCache;
import org.apache.hadoop.yarn.client.api.YarnClient;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.exceptions.InvalidResourceRequestException;
import org.apache.hadoop.yarn.util.ConverterUtils;
import org.apache.hadoop.yarn.util.Records;

public class UnmanagedMaster {
    private static final int N_CONTAINERS = 3;
    private static final int N_TRIES = 600;

    public static void main(String[] args) throws Exception {
        YarnConfiguration conf = new YarnConfiguration();
        YarnClient client = YarnClient.createYarnClient();
        client.init(conf);
        client.start();
        ApplicationSubmissionContext context = client.createApplication().getApplicationSubmissionContext();
        ApplicationId id = context.getApplicationId();
        context.setApplicationName("unmanaged master");
        context.setApplicationType("TEST");
        context.setQueue(args.length > 0 ? args[0] : "default");
        context.setUnmanagedAM(true);
        context.setAMContainerSpec(Records.newRecord(ContainerLaunchContext.class));
        context.setResource(Resource.newInstance(512, 1));
        client.submitApplication(context);
        System.out.println("submitted " + id);

        Token<?> token = null;
        for (int i = 0; token == null && i < N_TRIES; i++) {
            ApplicationReport report = client.getApplicationReport(id);
            if (report.getAMRMToken() != null) {
                token = ConverterUtils.convertFromYarn(report.getAMRMToken(), (Text) null);
            } else {
                Thread.sleep(100);
            }
        }
        UserGroupInformation.getCurrentUser().addToken(token);
        AMRMClient<ContainerRequest> master = AMRMClient.createAMRMClient();
        master.init(conf);
        master.start();
        RegisterApplicationMasterResponse registered =
            master.registerApplicationMaster("localhost", 1234, "http://localhost:1234/");
        System.out.println("registered in " + registered.getQueue() + " with at most "
            + registered.getMaximumResourceCapability().getMemorySize() + " MB");

        List<ContainerRequest> asked = new ArrayList<>();
        for (int i = 0; i < N_CONTAINERS; i++) {
            ContainerRequest request =
                new ContainerRequest(Resource.newInstance(600, 1), null, null, Priority.newInstance(1));
            asked.add(request);
            master.addContainerRequest(request);
        }
        List<Container> got = new ArrayList<>();
        boolean haveTokens = true;
        for (int i = 0; got.size() < N_CONTAINERS && i < N_TRIES; i++) {
            AllocateResponse answer = master.allocate(0.5f);
            for (Container container : answer.getAllocatedContainers()) {
                got.add(container);
                haveTokens &= container.getContainerToken() != null
                    && NMTokenCache.getNMToken(container.getNodeId().toString()) != null;
                master.removeContainerRequest(asked.remove(0));
            }
            Thread.sleep(100);
        }
        System.out.println("got " + got.size() + " containers of " + got.get(0).getResource().getMemorySize()
            + " MB, tokens for all: " + haveTokens);
        ApplicationReport running = client.getApplicationReport(id);
        System.out.println("state " + running.getYarnApplicationState() + " at " + running.getOriginalTrackingUrl());

        for (Container container : got) {
            master.releaseAssignedContainer(container.getId());
        }
        List<ContainerStatus> ended = new ArrayList<>();
        for (int i = 0; ended.size() < N_CONTAINERS && i < N_TRIES; i++) {
            ended.addAll(master.allocate(0.9f).getCompletedContainersStatuses());
            Thread.sleep(100);
        }
        System.out.println("ended " + ended.size() + " with " + ended.get(0).getExitStatus());

        ContainerRequest large =
            new ContainerRequest(Resource.newInstance(1 << 20, 1), null, null, Priority.newInstance(2));
        try {
            master.addContainerRequest(large);
            master.allocate(0.9f);
            System.out.println("a container of 1 TB was asked for");
        } catch (InvalidResourceRequestException refused) {
            System.out.println("refused: " + refused.getMessage());
            master.removeContainerRequest(large);
        }
        master.unregisterApplicationMaster(FinalApplicationStatus.SUCCEEDED, "all is well", "");
        ApplicationReport last = client.getApplicationReport(id);
        for (int i = 0; last.getFinishTime() == 0 && i < N_TRIES; i++) {
            Thread.sleep(100);
            last = client.getApplicationReport(id);
        }
        System.out.println("over: " + last.getYarnApplicationState() + " " + last.getFinalApplicationStatus());
    }
}
